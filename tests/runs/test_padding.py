"""Runs in packed rows compute what they compute with padding, and continue exactly."""

import dataclasses
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite import sharding
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import DataConfig, MeshConfig, fingerprint, required_head
from flaxformer_lite.data.encoding import encode_rows
from flaxformer_lite.data.padding import Packer, Shape
from flaxformer_lite.data.rows import keep_table
from flaxformer_lite.models import build_model
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.registry import resolve_class
from flaxformer_lite.runs import evaluate_file, padding, replay
from flaxformer_lite.runs.start import setup
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.text.tokenizer import Bytes
from flaxformer_lite.training import evaluate
from tests.marks import daily
from tests.models import tiny
from tests.objectives import tables
from tests.objectives.test_tasks import TASKS

LENGTH = 48
ROWS = [
    {"text": f"{'very ' * (number % 3)}{word}", "label": word}
    for number, word in enumerate(["good", "bad", "so so", "fine"] * 12)
]
MODEL = {"vocab_size": 0, "max_length": LENGTH, "pad_token_id": 0, "number": 1}


# decoders that write, and a softmax over padding too
PADDED = {"dpo", "grpo", "instruction", "late_interaction", "text_to_text", "question_answering"}


@pytest.mark.parametrize("name", daily(TASKS, ("multiple_choice",)))
def test_every_task_that_counts_tokens_has_the_same_loss_and_gradient_packed(name):
    task = resolve_class("objectives", name)()
    rows = [dict(row) for row in task.sample] * 2
    task = task.fit(rows, {})
    cfg = DataConfig(length=LENGTH)
    table = keep_table(rows, "the sample")
    records = encode_rows(task, cfg, table, table.rows, Bytes(), task.skeletons[0])
    if not task.ignores_padding:
        assert name in PADDED
        return
    batch = jax.tree.map(jnp.asarray, tables.stack(task, records))
    texts = batch["inputs"]["input_ids"].size // len(records) // LENGTH
    sizes_NC = records.text_lengths(np.arange(len(records)), texts)
    shape = Shape(len(records) * sizes_NC.shape[1], LENGTH)
    packer = Packer(sizes_NC.__getitem__, sizes_NC.shape[1], LENGTH, len(records), shapes=(shape,))
    slots = packer.pack(np.arange(len(records)), np.arange(len(records)))
    model = tiny.small("bert", head=required_head(task, "encoder"), number=1, max_length=LENGTH)
    model = task.fit_model(dataclasses.replace(model, vocab_size=512), Bytes())
    module = build_model(model)
    init = jax.jit(functools.partial(module.init, method=task.outputs))
    params = init(jax.random.key(0), batch["inputs"])["params"]

    def loss(params, inputs):
        outputs = module.apply({"params": params}, inputs, method=task.outputs)
        return task.loss(outputs, batch["targets"], chunks=1).mean()

    step = jax.jit(jax.value_and_grad(loss))
    due, due_gradient = step(params, batch["inputs"])
    found, gradient = step(params, {**batch["inputs"], "packing": slots})
    assert float(found) == pytest.approx(float(due), rel=1e-6)
    assert tiny.distance(gradient, due_gradient) < 1e-6


def experiment(folder, dropout=0.0, mesh=None, family="bert", **train):
    model = tiny.small(family, head="sequence_classification", **MODEL)
    model = dataclasses.replace(model, dropout=dropout)
    cfg = tables.experiment(folder, model, Classification(), ROWS, steps=6, length=LENGTH)
    given = dict(batch_size=16, eval_every=3, checkpoint_every=3, log_every=1) | train
    train = dataclasses.replace(cfg.train, **given)
    return dataclasses.replace(cfg, train=train, mesh=mesh or MeshConfig(data=1))


def first_step(cfg):
    run = setup.prepare_experiment(cfg)
    batch = next(run.train_batches(0))
    columns = batch["inputs"]["input_ids"].shape[1]
    assert ("packing" in batch["inputs"] or columns < LENGTH) == cfg.train.packing
    state = initial_state(run.program, "")
    held_out = run.eval_batches(), run.eval_data
    _, predictions = evaluate.run(run.program.eval_step, state.params, *held_out)
    metrics = jax.device_get(run.program.train_step(state, batch)[1])
    return [metrics["loss"], metrics["grad_norm"], metrics["param_norm"], predictions["logits"]]


def same_as_padded(cfg):
    for due, found in zip(first_step(padded(cfg)), first_step(cfg), strict=True):
        np.testing.assert_allclose(found, due, rtol=2e-6, atol=1e-6)


def padded(cfg):
    return dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, packing=False))


MESHES = [
    (MeshConfig(data=1), 1),
    (MeshConfig(data=1, context=2), 1),
    (MeshConfig(data=1, fsdp=2), 2),
    (MeshConfig(data=2, mode="shard_map"), 2),
    (MeshConfig(data=2, mode="pmap"), 1),
]


@pytest.mark.nightly
@pytest.mark.parametrize("mesh,accumulate", MESHES)
def test_a_step_is_the_same_packed_on_any_mesh(tmp_path, mesh, accumulate):
    same_as_padded(experiment(tmp_path, mesh=mesh, accumulate=accumulate))


@pytest.mark.nightly  # of shorter rows, tests/data/test_padding.py
def test_a_model_that_takes_no_packed_rows_computes_the_same_in_shorter_ones(tmp_path):
    cfg = experiment(tmp_path, family="bart")
    same_as_padded(cfg)
    assert described(cfg)["padded"].startswith("training to ")


@pytest.mark.nightly  # of packed rows, the test below
def test_a_run_in_shorter_rows_with_dropout_continues_exactly(tmp_path):
    cfg = experiment(tmp_path, family="bart", dropout=0.1)
    flaxformer_lite.run(cfg, tmp_path / "whole")
    cut = shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(cut / "checkpoints" / "6")
    flaxformer_lite.run(cfg, cut)
    assert records(cut) == records(tmp_path / "whole")


def records(folder):
    kept = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {(one["step"], one["split"]): (one["loss"], one.get("grad_norm")) for one in kept}


# Dropout is drawn again daily in tests/cli/test_steps.py.
@pytest.fixture(
    scope="module", params=daily([0.0, 0.1], [0.0]), ids=["without dropout", "with dropout"]
)
def finished(request, tmp_path_factory, prepared_once):
    """A run of six steps, and its workdir, of which only copies are written to."""
    folder = tmp_path_factory.mktemp("packed")
    cfg = experiment(folder, dropout=request.param)
    flaxformer_lite.run(cfg, folder / "run")
    return cfg, folder / "run"


def test_a_packed_run_continues_exactly(finished, tmp_path):
    cfg, whole = finished
    cut = shutil.copytree(whole, tmp_path / "cut")
    shutil.rmtree(cut / "checkpoints" / "6")
    flaxformer_lite.run(cfg, cut)
    assert records(cut) == records(whole)
    last = (json.loads((f / "checkpoints/6/meta/metadata").read_text()) for f in (cut, whole))
    assert len({json.dumps(record["leaves"]) for record in last}) == 1


@pytest.mark.nightly  # of runs that are not packed, tests/cli/test_steps.py
def test_its_steps_are_repeated(finished):
    cfg, whole = finished
    point = replay.before_step(whole, 5)
    losses = replay.row_losses(point)
    assert len(losses) == cfg.train.batch_size and np.isfinite(losses).all()
    _, values = replay.take(point)
    assert values["loss"] == records(whole)[5, "train"][0]


def test_a_trained_model_predicts_the_same_packed(finished, monkeypatch):
    trained = evaluate_file.open_trained(finished[1])
    data = evaluate_file.open_file(trained, trained.cfg.data.eval_path)
    metrics, predictions = trained.evaluate(data)
    monkeypatch.setattr(padding, "packing_error", lambda *_: "a test")
    due, due_predictions = trained.evaluate(data)
    assert metrics == pytest.approx(due, abs=1e-6)
    np.testing.assert_allclose(predictions["logits"], due_predictions["logits"], atol=1e-6)


def test_a_run_begun_before_there_was_packing_is_repeated_padded(finished, tmp_path):
    path = shutil.copytree(finished[1], tmp_path / "run") / "config.json"
    assert workdir.read_config(path.parent).train.packing
    stored = json.loads(path.read_text())
    del stored["config"]["train"]["packing"]
    path.write_text(json.dumps(stored | {"hash": fingerprint(stored["config"])}))
    assert not workdir.read_config(path.parent).train.packing


def described(cfg):
    return dict(setup.prepare_experiment(cfg).about_data)


def test_a_run_says_what_is_packed_or_which_length_would_do(tmp_path):
    cfg = experiment(tmp_path)
    assert "of the padded batch is computed" in described(cfg)["packed"]
    why = "is padding, as train.packing=False; --config.data.length=24 cuts no row"
    assert described(padded(cfg))["notice"].endswith(why)
    split = dataclasses.replace(cfg, mesh=MeshConfig(data=1, context=2))
    assert described(split)["padded"].startswith("training to ")


def test_models_that_read_padding_are_not_packed():
    choices = tiny.small("roformer", head="multiple_choice")
    assert "reads the last column" in padding.packing_error(choices, build_model(choices), 0)
    bart = tiny.small("bart", head="sequence_classification")
    assert "reads padded rows" in padding.packing_error(bart, build_model(bart), 1)
    bloom = tiny.small("bloom", head="sequence_classification", pad_token_id=3)
    assert not padding.packing_error(bloom, build_model(bloom), 3)
    assert "pad_token_id=3 is not" in padding.packing_error(bloom, build_model(bloom), 0)
    bird = tiny.small("big_bird")
    assert "block_sparse depends on the length" in padding.packing_error(bird, build_model(bird), 0)
    assert "block_sparse" in padding.cutting_error(bird, build_model(bird), 8)
    for record, why in ((MlpConfig, ""), (Counting, "Counting may count padding")):
        bert = tiny.small("bert", feed_forward=record())
        model = build_model(bert)
        for said in (padding.packing_error(bert, model, 0), padding.cutting_error(bert, model, 8)):
            assert said.endswith(why) and bool(said) is bool(why)


def test_padding_beyond_a_window_of_question_answering_is_told_once():
    neo = tiny.small("gpt_neo", head="question_answering", windows=(0, 8))
    assert padding.beyond_window(neo, 8) == []
    ((title, said),) = padding.beyond_window(neo, 9)
    assert title == "notice" and "more than 8 tokens of padding" in said
    assert said.endswith("--config.data.length=8 avoids it")
    assert padding.beyond_window(dataclasses.replace(neo, head="lm"), 9) == []


class Counting(MlpConfig):
    """A record from outside, whose layer may count padding."""

    reads_one_token = False


def test_a_batch_is_placed_with_the_packing_of_each_device():
    mesh = sharding.build_mesh(MeshConfig(data=4))
    batch = {"inputs": {"input_ids": np.arange(8), "packing": np.arange(4)[:, None, None]}}
    placed = sharding.place_batch(batch, mesh, 8)["inputs"]["packing"]
    assert [int(shard.data[0, 0, 0]) for shard in placed.addressable_shards] == [0, 1, 2, 3]
