"""Real models, shrunken, on a text of a few kilobytes: a run takes a second or two."""

import dataclasses
import json

import jax
import numpy as np

import flaxformer_lite
from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.checkpoints.record import read_record
from flaxformer_lite.checkpoints.run_inputs import write_inputs
from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)
from flaxformer_lite.models import bert, gpt2, t5
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.objectives.text.masked_lm import MaskedLm
from flaxformer_lite.objectives.text.span_corruption import SpanCorruption
from flaxformer_lite.runs.start import resume, setup

# Dropout and a loss in chunks are two thirds of what XLA has to compile of a step.
SIZES = {"vocab_size": 0, "d_model": 16, "num_heads": 2, "mlp_dim": 32, "dropout": 0.0}
FAMILIES = {
    "gpt2": (gpt2.config, {"decoder_layers": 1, "max_length": 32}, CausalLm()),
    "bert": (bert.config, {"encoder_layers": 1, "max_length": 32}, MaskedLm(pairs="next_sentence")),
    "t5": (t5.config, {"encoder_layers": 1, "decoder_layers": 1, "head_dim": 8}, SpanCorruption()),
}
TRAIN = {
    "steps": 8,
    "batch_size": 8,
    "log_every": 2,
    "eval_every": 4,
    "eval_batches": 2,
    "checkpoint_every": 4,
    "loss_chunks": 1,
}
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def text(folder):
    """Documents of counting words, one a line of jsonl."""
    lines = []
    for start in range(120):
        body = " ".join(WORDS[(start * step + step) % 10] for step in range(1 + start % 7, 60))
        lines.append(json.dumps({"text": f"from {start}: {body}."}))
    path = folder / "text.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def config(folder, family="gpt2", train=None, **parts):
    """An ExperimentConfig whose text and cache lie in `folder`."""
    build, sizes, objective = FAMILIES[family]
    data = DataConfig(
        path=str(text(folder)),
        tokenizer=TokenizerConfig(name="bytes"),
        length=32,
        eval_fraction=0.1,
        cache=str(folder / "cache"),
    )
    settings = {
        "model": build("tiny", **{**SIZES, **sizes}),
        "objective": objective,
        "data": data,
        "optimizer": OptimizerConfig(learning_rate=1e-2, warmup_steps=2, schedule="constant"),
        "train": TrainConfig(**{**TRAIN, **(train or {})}),
        "mesh": MeshConfig(data=1),
    }
    return ExperimentConfig(**{**settings, **parts})


def steps(cfg, count, **train):
    """The same config with another number of steps."""
    return dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, steps=count, **train))


def with_dropout(cfg):
    """The same config with dropout, where a run has to draw it again."""
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, dropout=0.1))


def any_state(program):
    """A state with noise for parameters: the package's own takes a program for each shape of
    them."""
    noise = np.random.default_rng(0)

    def fill(path, target):
        value = np.zeros(target.shape)
        if jax.tree_util.keystr(path).startswith(".params"):
            value = 0.1 * noise.standard_normal(target.shape) + (path[-1].key == "scale")
        return jax.device_put(value.astype(target.dtype), target.sharding)

    return jax.tree_util.tree_map_with_path(fill, program.target)


def untrained(cfg, folder, make_state=any_state):
    """Writes the workdir of a run that took no step, with all weights; by default with noise for
    parameters, which traces none."""
    experiment = setup.prepare_experiment(cfg)
    cfg = experiment.cfg
    saved = experiment.program.saved(make_state(experiment.program))
    with Checkpoints(folder / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(0, saved, resume.meta(cfg, experiment.train_data.fingerprint, 0))
    write_inputs(folder, cfg, experiment.train_data.tokenizer, experiment.train_data.fingerprint)
    return folder


def resumes_exactly(cfg, folder):
    """Runs all steps with dropout, and again with a stop after three; returns whether both end in
    the same state, bit for bit."""
    cfg = with_dropout(cfg)
    flaxformer_lite.run(cfg, folder / "straight")
    flaxformer_lite.run(steps(cfg, 3), folder / "twice")
    flaxformer_lite.run(cfg, folder / "twice")
    straight, twice = (
        read_record(folder / name / "checkpoints" / "8") for name in ("straight", "twice")
    )
    return straight["leaves"] == twice["leaves"]
