"""Distillation by whole runs: a teacher that is never changed, never saved, and must stay the
same."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from jax.tree_util import tree_leaves_with_path as leaves_with_path

import flaxformer_lite
from flaxformer_lite import load_pretrained, save_pretrained
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.checkpoints.record import CheckpointError, read_record
from flaxformer_lite.config import ConfigError, TokenizerConfig
from flaxformer_lite.models import bert
from flaxformer_lite.objectives.text.distillation import Distillation
from flaxformer_lite.objectives.text.masked_lm import MaskedLm
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.start import referenced_weights, setup
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.training import bound_models
from tests.objectives import tables
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("distillation")


@pytest.fixture(scope="module")
def teacher(folder):
    return tiny_runs.untrained(tiny_runs.config(folder), folder / "teacher")


def student(folder, teacher, train=None, **options):
    """A narrower model of one layer."""
    objective = Distillation(teacher=str(teacher), **options)
    cfg = tiny_runs.config(folder, train=train, objective=objective)
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, d_model=8))


@pytest.mark.nightly
def test_a_stopped_run_ends_as_if_it_had_not_been_and_keeps_no_teacher(folder, tmp_path):
    teacher = tmp_path / "teacher"
    flaxformer_lite.run(tiny_runs.config(folder), teacher)
    assert tiny_runs.resumes_exactly(student(folder, teacher, {"accumulate": 2}), tmp_path)
    leaves = read_record(tmp_path / "twice" / "checkpoints" / "8")["leaves"]
    assert not any("teacher" in path for path in leaves)
    model, params = load_pretrained(tmp_path / "twice")
    assert "teacher" not in params and model.cfg.d_model == 8
    first, *_, last = tables.read_split(tmp_path / "twice")
    assert last["divergence"] < first["divergence"]


def test_the_teacher_is_that_of_the_directory_and_no_step_changes_it(folder, teacher):
    experiment = setup.prepare_experiment(student(folder, teacher, {"init_from": ""}))
    state = initial_state(experiment.program)
    wanted = flatten_dict(workdir.read_run(teacher).params, sep="/")

    def same(state):
        found = flatten_dict(state.params["teacher"], sep="/")
        jax.tree.map(np.testing.assert_array_equal, found, wanted)

    same(state)
    held = [jax.tree_util.keystr(path) for path, _ in leaves_with_path(state.opt_state)]
    assert any("token_embed" in path for path in held)
    assert not any("teacher" in path for path in held)
    state, got = experiment.program.train_step(state, next(iter(experiment.train_batches(0))))
    same(state)
    assert float(got["divergence"]) > 0


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it(folder, teacher):
    cfg = tiny_runs.config(
        folder, objective=Distillation(teacher=str(teacher)), train={"init_from": str(teacher)}
    )
    model = dataclasses.replace(cfg.model, dropout=0.0, vocab_size=384)
    experiment = setup.prepare_experiment(dataclasses.replace(cfg, model=model))
    state = initial_state(experiment.program, str(teacher))
    sums, _ = experiment.program.eval_step(state.params, next(iter(experiment.eval_batches())))
    total, weight = sums.metrics["divergence"]
    assert abs(float(total / weight)) < 1e-6 < float(sums.mean())


@pytest.mark.nightly
def test_masked_lm_from_published_weights(folder, tmp_path):
    sizes = tiny_runs.SIZES | {"max_length": 32, "vocab_size": 384, "head": "masked_lm"}
    deep, flat = (bert.config("tiny", **sizes, encoder_layers=count) for count in (2, 1))
    cfg = tiny_runs.config(folder, model=deep, objective=MaskedLm())
    flaxformer_lite.run(tiny_runs.steps(cfg, 2), tmp_path / "run")
    run = workdir.read_run(tmp_path / "run")
    save_pretrained(tmp_path / "published", run.model, run.params)
    shutil.copytree(tmp_path / "run" / "tokenizer", tmp_path / "published", dirs_exist_ok=True)
    objective = Distillation(teacher=str(tmp_path / "published"), task="masked_lm", temperature=1.0)
    cfg = dataclasses.replace(cfg, model=flat, objective=objective)
    flaxformer_lite.run(tiny_runs.steps(cfg, 2), tmp_path / "student")
    assert "divergence" in metrics.read(tmp_path / "student" / "metrics.jsonl")[-1]


@pytest.mark.nightly
def test_other_weights_than_at_the_start_are_refused(folder, teacher, tmp_path):
    mine = shutil.copytree(teacher, tmp_path / "teacher")
    cfg = student(folder, mine)
    flaxformer_lite.run(tiny_runs.steps(cfg, 2), tmp_path / "run")
    flaxformer_lite.run(tiny_runs.steps(tiny_runs.config(folder), 1), mine)
    message = (
        r"teacher: teacher/\S+ is not what the run was trained over .* put the old weights back"
    )
    with pytest.raises(CheckpointError, match=message):
        flaxformer_lite.run(cfg, tmp_path / "run")


def test_what_does_not_fit_is_one_sentence(folder, teacher, tmp_path):
    cfg = student(folder, teacher)
    nowhere = Distillation(teacher=str(tmp_path / "nowhere"))
    longer = dataclasses.replace(cfg.model, max_length=64)
    smaller = dataclasses.replace(cfg.model, vocab_size=384)
    words = dataclasses.replace(cfg.data, tokenizer=TokenizerConfig(vocab_size=380))
    for message, parts in {
        "objective.teacher: empty; set it to a directory": {"objective": Distillation()},
        "objective.teacher: .*nowhere": {"objective": nowhere},
        "its vocabulary has 384 entries, but the model's has 512; set model.vocab_size=384": {
            "model": dataclasses.replace(cfg.model, vocab_size=512)
        },
        "length=64: objective.teacher=.* has positions for 32 tokens only; set data.length=32": {
            "data": dataclasses.replace(cfg.data, length=64),
            "model": longer,
        },
        "its tokenizer is not the run's, so an id means another token; set data.tokenizer.path=": {
            "data": words,
            "model": smaller,
        },
    }.items():
        with pytest.raises(ConfigError, match=message):
            setup.prepare_experiment(dataclasses.replace(cfg, **parts))


def test_the_library_reads_no_directory_by_itself(folder, teacher):
    cfg = student(folder, teacher)
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=384))
    with pytest.raises(ConfigError, match=r"objective.teacher=.*:.*unknown;.*read"):
        bound_models.build(cfg)
    models = bound_models.build(cfg, referenced_weights.read_config(cfg))
    module = models.second
    assert models.auxiliary.name == "teacher"
    assert (module.cfg.d_model, module.cfg.decoder_layers) == (16, 1)


def test_the_mixture_is_that_of_its_options(create):
    assert create("distillation", task="masked_lm").head == "masked_lm"
    with pytest.raises(ValueError, match=r"soft_weight=1.5: must be between 0 and 1"):
        create("distillation", soft_weight=1.5)
    with pytest.raises(ValueError, match=r"task='seq2seq': .*causal_lm, masked_lm"):
        create("distillation", task="seq2seq")
