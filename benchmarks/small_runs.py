"""Short trainings of tiny language models on the built-in text, for comparisons of many settings.

The text is the standard library's sources in bytes. Each setting of a comparison sees the same
batches, each once, from weights of the same seed.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flaxformer_lite.config import DataConfig, ExperimentConfig, TokenizerConfig
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.training import bound_models, program, state
from flaxformer_lite.training.average import evaluated_params
from flaxformer_lite.types import Batch

HELD_OUT = 16  # batches


def text(length: int) -> DataConfig:
    return DataConfig(tokenizer=TokenizerConfig(name="bytes"), length=length)


def batches(cfg: ExperimentConfig, split: str, count: int) -> Batch:
    """Returns the first batches of a split, [count, B, ...]."""
    dataset = open_dataset(cfg, split)
    first = itertools.islice(dataset.batches(batch_size=cfg.train.batch_size), count)
    return jax.tree.map(lambda *xs: np.stack(xs), *first)


def sized(cfg: ExperimentConfig) -> ExperimentConfig:
    return program.with_vocabulary(cfg, open_dataset(cfg, "train").vocab_size)


def train(cfg: ExperimentConfig, rates: list[float], seeds: int = 1) -> np.ndarray:
    """Trains an experiment at each learning rate from each seed.

    Args:
      cfg: has the schedule, whose peak is 1; the vocabulary is filled in.
      rates: factors on all updates, the peaks.
      seeds: number of seeds of the weights.

    Returns:
      The held-out losses in nats, [rates, seeds]; NaN or large where training diverged.
    """
    tx = program.update_rule(cfg)
    model = bound_models.build(cfg)
    loss = program.loss(cfg, model)
    held_out_sums = program.eval_step(cfg, model)
    shown = batches(cfg, "train", cfg.train.steps)
    held = batches(cfg, "eval", HELD_OUT)

    @jax.jit
    def run(rate: jax.Array, key: jax.Array, shown: Batch, held: Batch) -> jax.Array:
        example = jax.tree.map(lambda x: x[0, :1], shown["inputs"])
        first = state.create(lambda: model.init(key, example), tx)

        def body(now: state.TrainState, batch: Batch) -> tuple[state.TrainState, None]:
            grads = jax.grad(loss)(now.params, batch)
            updates, opt_state = tx.update(grads, now.opt_state, now.params)
            updates = jax.tree.map(lambda update: rate * update, updates)
            params = optax.apply_updates(now.params, updates)
            return state.TrainState(now.step + 1, params, opt_state), None

        last, _ = jax.lax.scan(body, first, shown)
        params = evaluated_params(last)
        return jnp.mean(jax.lax.map(lambda batch: held_out_sums(params, batch)[0].mean(), held))

    losses = [
        [run(jnp.float32(rate), jax.random.key(seed), shown, held) for seed in range(seeds)]
        for rate in rates
    ]
    return np.asarray(jax.device_get(losses))
