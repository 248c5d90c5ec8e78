"""Small tables for runs of tasks: a run takes a few seconds."""

import json

import numpy as np

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)
from flaxformer_lite.data.encoded_rows import encode_rows
from flaxformer_lite.data.table import Table
from flaxformer_lite.text.tokenizer import Bytes

TRAIN = {
    "batch_size": 8,
    "log_every": 20,
    "eval_every": 30,
    "eval_batches": 0,
    "checkpoint_every": 1000,
    "loss_chunks": 1,
}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def experiment(folder, model, task, rows, *, steps, held=None, length=32, **data):
    """A run of a task on rows, which also holds out `held` or the same rows."""
    paths = [
        write_rows(folder / name, part)
        for name, part in (("train.jsonl", rows), ("eval.jsonl", held or rows))
    ]
    return ExperimentConfig(
        model=model,
        objective=task,
        data=DataConfig(
            path=paths[0],
            eval_path=paths[1],
            cache=str(folder / "cache"),
            length=length,
            tokenizer=TokenizerConfig(name="bytes"),
            **data,
        ),
        optimizer=OptimizerConfig(learning_rate=4e-3, warmup_steps=20, schedule="constant"),
        train=TrainConfig(steps=steps, **TRAIN),
        mesh=MeshConfig(data=1),
    )


def records(task, rows, *, length=32, target_length=0, tokenizer=None):
    """The records of rows by role, one example each."""
    table = Table("rows.jsonl", tuple(rows[0]), rows, "")
    words = tokenizer or Bytes()
    cfg = DataConfig(length=length, target_length=target_length)
    return encode_rows(task, cfg, table, rows, words, task.skeletons[0])


def stack(task, records, examples=None):
    """A batch of examples."""
    count = range(len(records)) if examples is None else examples
    made = [task.make_example(records, i, np.random.default_rng(0)) for i in count]
    return {
        part: {k: np.stack([m[part][k] for m in made]) for k in made[0][part]}
        for part in ("inputs", "targets")
    }
