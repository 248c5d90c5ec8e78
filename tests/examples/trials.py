"""Runs of the examples as a user starts them: a page, an example's name in place of a part, a few
steps."""

import flaxformer_lite
from flaxformer_lite.cli import command_line
from flaxformer_lite.config import ExperimentConfig, from_config_dict
from flaxformer_lite.runs.report import metrics
from tests.training import tiny_runs

OF_ALL = {  # pages
    "model.d_model": 32,
    "model.num_heads": 2,
    "model.mlp_dim": 48,
    "model.vocab_size": 0,
    "model.dropout": 0.0,
    "data.tokenizer.name": "bytes",
    "data.length": 32,
    "data.eval_fraction": 0.1,
    "train.steps": 6,
    "train.batch_size": 8,
    "train.eval_every": 6,
    "train.log_every": 1,
    "train.eval_batches": 2,
    "train.checkpoint_every": 6,
    "train.sample_tokens": 0,
    "train.loss_chunks": 1,
    "optimizer.learning_rate": 1e-2,
    "optimizer.warmup_steps": 1,
    "mesh.data": 1,
}
SMALL = OF_ALL | {"model.decoder_layers": 2, "model.max_length": 64}


def experiment_dict(folder, page="gpt2_tiny", **changes):
    values = SMALL | {"data.path": tiny_runs.text(folder), "data.cache": folder / "cache"} | changes
    flags = (f"--config.{name}={value}" for name, value in values.items())
    return command_line.config([f"--config={page}", *flags])


def train(folder, **changes):
    """The records of a run."""
    cfg = from_config_dict(ExperimentConfig, experiment_dict(folder, **changes))
    flaxformer_lite.run(cfg, folder / "run")
    return cfg, metrics.read(folder / "run" / "metrics.jsonl")
