import dataclasses
import json

import pytest

from flaxformer_lite.checkpoints.frozen_base import Base
from flaxformer_lite.config import ConfigError, ExperimentConfig, MeshConfig, from_config_dict
from flaxformer_lite.objectives.text.span_corruption import SpanCorruption
from flaxformer_lite.runs.start import resume
from tests.models import tiny
from tests.training import tiny_runs


@pytest.fixture
def cfg(tmp_path):
    return tiny_runs.config(tmp_path)


def stored(cfg, step=4, data="abc"):
    """The record as a checkpoint gives it back."""
    return json.loads(json.dumps(resume.meta(cfg, data, step)))


def with_optimizer(cfg, **fields):
    return dataclasses.replace(cfg, optimizer=dataclasses.replace(cfg.optimizer, **fields))


def with_data(cfg, **fields):
    return dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, **fields))


def test_a_run_whose_mixer_had_another_name_continues(cfg):
    model = tiny.small("seq2seq_recurrent")
    cfg = dataclasses.replace(cfg, model=model, objective=SpanCorruption())
    then = stored(cfg)
    then["config"]["model"]["decoder_mixer"]["name"] = "attentive"
    assert from_config_dict(ExperimentConfig, then["config"]) == cfg
    resume.check(then, cfg, "abc")


def test_what_only_steers_output_and_layout_may_change(cfg):
    assert resume.notices(stored(cfg), cfg) == []
    every = {"log_every": 1, "eval_every": 1, "eval_batches": 1, "checkpoint_every": 1, "keep": 1}
    other = tiny_runs.steps(cfg, cfg.train.steps, **every)
    paths = {"cache": "elsewhere", "path": "moved.jsonl", "eval_path": "moved/dev.jsonl"}
    other = with_data(dataclasses.replace(other, mesh=MeshConfig(data=4)), **paths)
    for same in (cfg, other):
        resume.check(stored(cfg), same, "abc")


def test_all_differences_are_listed(cfg):
    other = with_optimizer(dataclasses.replace(cfg, seed=3), name="lion")
    with pytest.raises(ConfigError, match=r"optimizer.name: adamw -> lion; seed: 0 -> 3\..*value"):
        resume.check(stored(cfg), other, "abc")


def test_only_a_run_over_weights_of_its_start_may_name_another_folder(cfg):
    moved = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, init_from="moved"))
    leaves = {"decoder/bias": ["float32", [2], "0123456789abcdef"]}
    resume.check(stored(cfg), moved, "abc", Base("", "start", "reference", leaves))
    teacher = Base("", "", "reference", {"teacher/bias": leaves["decoder/bias"]})
    then = json.loads(json.dumps(resume.meta(cfg, "abc", 4, teacher)))
    with pytest.raises(ConfigError, match=r"train.init_from:  -> moved"):
        resume.check(then, moved, "abc", teacher)


def test_other_data_is_refused_even_under_the_same_config(cfg):
    with pytest.raises(ConfigError, match=r"text or tokenizer: abc -> xyz \(or this version makes"):
        resume.check(stored(cfg), cfg, "xyz")


@pytest.mark.parametrize("schedule", ["constant", "rsqrt"])
def test_a_schedule_without_an_end_may_be_prolonged(cfg, schedule):
    cfg = with_optimizer(cfg, schedule=schedule)
    resume.check(stored(cfg, 8), tiny_runs.steps(cfg, 100), "abc")


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_schedule_with_an_end_may_not(cfg, schedule):
    cfg = with_optimizer(cfg, schedule=schedule)
    said = rf"train.steps: 8 -> 100 \(the {schedule} schedule is a function of it\)"
    with pytest.raises(ConfigError, match=said):
        resume.check(stored(cfg), tiny_runs.steps(cfg, 100), "abc")


def test_wsd_may_be_prolonged_until_its_decay_begins(cfg):
    cfg = with_optimizer(tiny_runs.steps(cfg, 100), schedule="wsd", decay_steps=20)
    resume.check(stored(cfg, 80), tiny_runs.steps(cfg, 200), "abc")
    with pytest.raises(ConfigError, match=r"train.steps: 100 -> 200"):
        resume.check(stored(cfg, 90), tiny_runs.steps(cfg, 200), "abc")


def test_changes_that_end_bit_equality_are_noticed(cfg):
    old = stored(cfg)
    old["versions"]["jax"] = "0.0.1"
    (notice,) = resume.notices(old, dataclasses.replace(cfg, mesh=MeshConfig(data=4)))
    changed = "changed since the run began: mesh.data, jax"
    assert notice == f"{changed}; results will match only up to rounding."


def test_a_long_list_of_differences_is_cut(cfg):
    fields = {"learning_rate": 1.0, "name": "lion", "b1": 0.5, "b2": 0.5, "eps": 1.0}
    fields |= {"weight_decay": 0.0, "clip_norm": 0.0}
    with pytest.raises(ConfigError, match=r"optimizer.name: adamw -> lion and 1 more\. Go back"):
        resume.check(stored(cfg), with_optimizer(cfg, **fields), "abc")


def test_a_field_that_is_newer_than_the_run_had_its_default(cfg):
    old = stored(cfg)
    del old["config"]["data"]["drop_incomplete"]
    resume.check(old, cfg, "abc")
    with pytest.raises(ConfigError, match=r"data\.drop_incomplete: False -> True"):
        resume.check(old, with_data(cfg, drop_incomplete=True), "abc")
