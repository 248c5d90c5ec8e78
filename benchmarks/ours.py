"""This package: the train step that training/program.py builds of a config for every run, and
generate()."""

import functools
import os

from flaxformer_lite.runtime import environment

if __name__ == "__main__":
    environment.configure()  # as every command of the package does, before jax

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cases, child
from flaxformer_lite import generate, load_pretrained, registry, sharding
from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.objectives.text.masked_lm import MaskedLm
from flaxformer_lite.objectives.text.span_corruption import SpanCorruption
from flaxformer_lite.runs.start import initial_state
from flaxformer_lite.runs.start.compiled_steps import compile_when_called
from flaxformer_lite.training import program

OBJECTIVES = {"gpt2": CausalLm(), "bert": MaskedLm(), "t5": SpanCorruption()}


def model_config(case: cases.Case) -> ModelConfig:
    layers = {"gpt2": ("decoder",), "bert": ("encoder",), "t5": ("encoder", "decoder")}[case.family]
    head = {"head": "masked_lm"} if case.family == "bert" else {}
    return registry.resolve("models", case.family).config(
        "small" if case.family != "bert" else "base",
        d_model=case.d_model,
        num_heads=case.heads,
        mlp_dim=case.mlp_dim,
        vocab_size=case.vocab,
        dropout=0.0,
        **{f"{side}_layers": case.layers for side in layers},
        **head,
    )


def train(case: cases.Case):
    batch = rows(case)
    cfg = experiment(case, cache=os.environ["BENCHMARK_CACHE"])
    ready = program.build(cfg, sharding.build_mesh(cfg.mesh), jax.tree.map(lambda x: x[0], batch))
    batch = sharding.place_batch(batch, ready.mesh)
    state = initial_state.initial_state(ready)
    ready = compile_when_called(ready)  # as a run does
    flops = ready.flops_per_step

    def step() -> dict:
        nonlocal state
        state, metrics = ready.train_step(state, batch)
        return {"loss": float(metrics["loss"]), "flops": flops}

    return step


def experiment(case: cases.Case, cache: str = "") -> ExperimentConfig:
    return ExperimentConfig(
        model=model_config(case),
        objective=OBJECTIVES[case.family],
        data=DataConfig(length=case.length, target_length=case.target, cache=cache),
        optimizer=OptimizerConfig(schedule="constant", warmup_steps=0, **cases.OPTIMIZER),
        train=TrainConfig(batch_size=case.batch),
    )


def rows(case: cases.Case) -> dict:
    """Converts the case's batch to the form that the objective makes."""
    arrays = {name: x.astype(np.int32) for name, x in cases.batch(case).items()}
    labels = arrays.pop("labels")
    inputs = arrays | {"segment_ids": np.ones_like(arrays["input_ids"])}
    if case.family == "t5":
        inputs["decoder_segment_ids"] = np.ones_like(labels)
    if case.family == "bert":
        masked = (labels != cases.IGNORED).sum(axis=1)[0]
        positions = np.nonzero(labels != cases.IGNORED)[1].reshape(-1, masked).astype(np.int32)
        labels = np.take_along_axis(labels, positions, axis=1)
        inputs["masked_positions"] = positions
    return {
        "inputs": inputs,
        "targets": {"labels": labels, "weights": np.ones(labels.shape, np.float32)},
    }


def write(case: cases.Case):
    model, params = load_pretrained(os.environ["BENCHMARK_WEIGHTS"])
    ids = cases.batch(case)["input_ids"]
    return lambda: {
        "ids": generate(model, params, ids, max_new_tokens=case.target)[:, -case.target :].tolist()
    }


def matmul() -> None:
    jax.block_until_ready(MULTIPLY(_square(), _square()))


@functools.cache
def _square() -> jax.Array:
    """Builds a matrix lazily, as it would count in the first step if built on import."""
    return jnp.ones((child.MATMUL, child.MATMUL))


MULTIPLY = jax.jit(jnp.dot)

if __name__ == "__main__":
    child.serve({"train": train, "generate": write}, matmul, ["jax", "flax"])
