"""Small tables for runs of tasks: a run takes a few seconds."""

import json
import types

import jax
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)
from flaxformer_lite.data.encoding import encode_rows
from flaxformer_lite.data.rows import keep_table
from flaxformer_lite.models import llama
from flaxformer_lite.runs import loop
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.text.tokenizer import Bytes
from tests.models.tiny import built

TRAIN = {
    "batch_size": 8,
    "log_every": 20,
    "eval_every": 30,
    "eval_batches": 0,
    "checkpoint_every": 1000,
    "loss_chunks": 1,
}


def tiny_llama(positions):
    sizes = {"d_model": 32, "num_heads": 2, "mlp_dim": 48, "decoder_layers": 1}
    return llama.config("tiny", vocab_size=0, max_length=positions, **sizes)


def user(text):
    return {"role": "user", "content": text}


def answer(text):
    return {"role": "assistant", "content": text}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def experiment(folder, model, task, rows, *, steps, held=None, length=32, **data):
    """A run of a task on rows, which also holds out `held` or the same rows."""
    return ExperimentConfig(
        model=model,
        objective=task,
        data=DataConfig(
            path=write_rows(folder / "train.jsonl", rows),
            eval_path=write_rows(folder / "eval.jsonl", held or rows),
            cache=str(folder / "cache"),
            length=length,
            tokenizer=TokenizerConfig(name="bytes"),
            **data,
        ),
        optimizer=OptimizerConfig(learning_rate=4e-3, warmup_steps=20, schedule="constant"),
        train=TrainConfig(steps=steps, **TRAIN),
        mesh=MeshConfig(data=1),
    )


def run_and_listen(cfg, workdir):
    """Runs; returns the tables that the terminal showed, by their titles."""
    shown = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            loop.Terminal, "rows", lambda self, title, rows, **_: shown.update({title: list(rows)})
        )
        flaxformer_lite.run(cfg, workdir)
    return shown


def read_split(workdir, split="eval"):
    """The records of a run's training, or of its evaluations."""
    return [r for r in metrics.read(workdir / "metrics.jsonl") if r["split"] == split]


def records(task, rows, *, length=32, target_length=0, tokenizer=None):
    """The records of rows by role, one example each."""
    table = keep_table(rows, "rows.jsonl")
    words = tokenizer or Bytes()
    cfg = DataConfig(length=length, target_length=target_length)
    return encode_rows(task, cfg, table, table.rows, words, task.skeletons[0])


def data_of(records):
    """What a task's scores and baseline read, where both splits are these records."""
    return types.SimpleNamespace(
        records=records, splits={"train": records, "eval": records}, order=np.arange(len(records))
    )


def stack(task, records):
    """A batch of all examples."""
    rng = np.random.default_rng(0)
    made = [task.make_example(records, i, rng) for i in range(len(records))]
    return jax.tree.map(lambda *xs: np.stack(xs), *made)


def check_packed(task, cfg, records, groups):
    """Joins rows into groups of their numbers, which have the loss of all rows apart."""
    packed = records.join_neighbors()
    assert [packed.records_of(row).tolist() for row in range(len(packed))] == groups
    model, params = built(cfg)

    @jax.jit
    def sums(batch):
        out = model.apply({"params": params}, batch["inputs"], method=task.outputs)
        return task.loss(out, batch["targets"], chunks=1)

    apart, joined = (sums(stack(task, each)) for each in (records, packed))
    np.testing.assert_allclose(apart.loss["weights"], joined.loss["weights"], rtol=1e-5)
    assert apart.weight == joined.weight
    return apart.weight["weights"]
