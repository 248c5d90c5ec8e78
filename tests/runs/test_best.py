"""Whole runs of a tiny model that keep their best weights, and stop when they get no better."""

import contextlib
import dataclasses
import io
import json
import math
import shutil

import jax
import pytest

import flaxformer_lite
from flaxformer_lite import load_pretrained
from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.config import ConfigError, OptimizerConfig
from flaxformer_lite.runs.best import Best, Selection
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.start import setup
from flaxformer_lite.training.evaluate import evaluate
from tests.marks import daily
from tests.training import tiny_runs

TRAIN = {"steps": 12, "eval_every": 2, "checkpoint_every": 3, "best": "accuracy"}
# each evaluation equals the first
STILL = OptimizerConfig(learning_rate=1e-30, warmup_steps=0, schedule="constant")


def leaves_of(folder, step):
    return json.loads((folder / str(step) / "meta" / "metadata").read_text())["leaves"]


def steps_in(folder):
    return {int(path.name) for path in folder.iterdir() if path.name.isdigit()}


def evals(folder):
    return [r for r in metrics.read(folder / "metrics.jsonl") if r["split"] == "eval"]


def said_by(run, *args):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        run(*args)
    return said.getvalue()


def with_train(cfg, **fields):
    return dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, **fields))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module", params=daily(["few parts", "all"], ["few parts"]))
def cfg(request, folder):
    """A run whose accuracy is best in the middle, nightly with all that a resume has to carry."""
    optimizer = OptimizerConfig(
        learning_rate=0.3, warmup_steps=2, schedule="cosine", ema=0.6, freeze=("final_norm/bias",)
    )
    cfg = tiny_runs.config(folder, train={**TRAIN, "patience": 3}, optimizer=optimizer)
    if request.param == "few parts":
        return cfg
    rates = {"layer_decay": 0.8, "rates": ("token_embed=0.5",)}
    return dataclasses.replace(
        cfg,
        model=dataclasses.replace(cfg.model, param_dtype="bfloat16", scan=True),
        optimizer=dataclasses.replace(optimizer, **rates),
    )


@pytest.fixture(scope="module")
def finished(cfg, tmp_path_factory):
    """Its workdir, and copies of it as a kill would leave it: before and after each save."""
    there = tmp_path_factory.mktemp("finished")
    copies = {}
    real = Checkpoints.save

    def save(self, step, state, meta):
        for when in ("before", "after"):
            copy = there / f"{self.folder.name}-{step}-{when}"
            copies[self.folder.name, step, when] = copy
            shutil.copytree(there / "run", copy, symlinks=True)
            if when == "before":
                real(self, step, state, meta)
                self.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        assert "0 after step two" in said_by(flaxformer_lite.run, cfg, there / "run")
    return there / "run", copies


def same_end(run, other):
    last = max(steps_in(other / "checkpoints"))
    assert steps_in(run / "best") == steps_in(other / "best")
    assert max(steps_in(run / "checkpoints")) == last
    assert leaves_of(run / "checkpoints", last) == leaves_of(other / "checkpoints", last)
    (best,) = steps_in(other / "best")
    assert leaves_of(run / "best", best) == leaves_of(other / "best", best)
    assert evals(run) == evals(other)


def test_the_best_step_is_kept_apart_from_the_newest_and_patience_ends_the_run(cfg, finished):
    run, _ = finished
    seen = {r["step"]: r["accuracy"] for r in evals(run) if r["step"]}
    (best,) = steps_in(run / "best")
    assert best == max(seen, key=seen.get) and seen[best] > seen[2], seen
    assert max(seen) == best + 3 * 2 < cfg.train.steps, "three evaluations after the best"
    assert max(steps_in(run / "checkpoints")) == max(seen)


@pytest.mark.nightly
def test_killed_around_the_save_of_the_best_it_ends_bit_for_bit_alike(cfg, finished):
    run, copies = finished
    (best,) = steps_in(run / "best")
    checkpoint = min(step for kind, step, _ in copies if kind == "checkpoints" and step >= best)
    assert checkpoint > best, "the best weights are there before the checkpoint behind them"
    moments = [("best", best, "before"), ("best", best, "after")]
    for moment in (*moments, ("checkpoints", checkpoint, "after")):
        flaxformer_lite.run(cfg, copies[moment])
        same_end(copies[moment], run)


def test_what_is_loaded_has_the_recorded_value(cfg, finished, tmp_path, caplog):
    run = shutil.copytree(finished[0], tmp_path / "run")
    (best,) = steps_in(run / "best")
    newest = max(steps_in(run / "checkpoints"))
    experiment = setup.prepare_experiment(cfg)
    recorded = {r.pop("step"): r for r in evals(run) if r.pop("split")}

    def value():
        params = jax.device_put(load_pretrained(run)[1])
        held_out = experiment.eval_batches(), experiment.eval_data
        return evaluate(cfg.objective, experiment.program.eval_step, params, *held_out)[0]

    assert value() == recorded[best]
    said = f"step {best} is used, the best by accuracy; the newest checkpoint is step {newest}"
    assert said in caplog.text
    shutil.rmtree(next((run / "best").glob("*/state/d")))
    assert value() == recorded[newest], "the average of the newest checkpoint"
    assert f"best checkpoint of step {best} cannot be read" in caplog.text
    assert f"step {newest} is used" in caplog.text
    record = leaves_of(run / "checkpoints", newest)
    assert "opt_state/ema/token_embed/embedding" in record
    assert "opt_state/ema/decoder/final_norm/bias" not in record, "frozen"


@pytest.mark.nightly
def test_a_run_that_stopped_says_so_and_more_patience_continues_it(folder, tmp_path):
    train = {**TRAIN, "steps": 8, "best": "perplexity", "patience": 2}
    cfg = tiny_runs.config(folder, train=train, optimizer=STILL)
    said = said_by(flaxformer_lite.run, cfg, tmp_path)
    # each evaluation shows it
    assert "step 4/8  held out: loss 5.9" in said and "perplexity 38" in said
    assert "after 2 steps, and no better in 2 evaluations since (train.patience)" in said
    assert str(tmp_path / "best") in said
    assert [r["step"] for r in evals(tmp_path)] == [0, 2, 4, 6]
    assert steps_in(tmp_path / "best") == {2}
    said = said_by(flaxformer_lite.run, cfg, tmp_path)
    assert "2 evaluations since (train.patience): nothing is left to train" in said
    assert max(steps_in(tmp_path / "checkpoints")) == 6
    flaxformer_lite.run(with_train(cfg, patience=0), tmp_path)
    assert max(steps_in(tmp_path / "checkpoints")) == 8 and steps_in(tmp_path / "best") == {2}


def test_an_unknown_metric_is_refused_before_the_first_step(folder, tmp_path):
    cfg = tiny_runs.config(folder, train={**TRAIN, "best": "acuracy"})
    said = r"best='acuracy': no such metric; did you mean 'accuracy'\?; evaluations have .*perplex"
    with pytest.raises(ConfigError, match=said):
        flaxformer_lite.run(cfg, tmp_path)
    assert not steps_in(tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("name", "values", "due"),
    [
        ("accuracy", [0.1, 0.3, 0.3, 0.2], Best(2, 0.3, 2)),
        ("perplexity", [9.0, 7.0, 7.0, 8.0], Best(2, 7.0, 2)),
        ("mine", [9.0, math.nan, 7.0, 8.0], Best(3, 7.0, 1)),
        ("accuracy", [math.nan, 0.1], Best(2, 0.1)),
    ],
)
def test_the_direction_is_the_metrics_own_and_lower_is_better_for_others(folder, name, values, due):
    cfg = tiny_runs.config(folder, train={**TRAIN, "best": name})
    selection = Selection(cfg, object(), Best())
    for step, value in enumerate(values, 1):
        selection.after(step, {name: value})
    assert selection.best == due


def test_patience_without_a_metric_is_refused(cfg):
    with pytest.raises(ConfigError, match=r"train.patience=3:.*better.*name it: train.best=loss"):
        with_train(cfg, best="")
