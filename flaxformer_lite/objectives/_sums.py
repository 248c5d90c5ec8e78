"""Losses as sums and weights, so that microbatches, devices and processes add up to exactly the loss of the whole batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class LossSums(NamedTuple):
    """What an objective makes of a batch or a part of one; parts add leaf by leaf (`jax.tree.map(jnp.add, a, b)`).

    A term is named after the array of weights it is weighted by, which is a float32 array in `targets`: `weights` for
    tokens, `next_sentence_weight` for pairs. The loss of a batch is the sum over the terms of loss / weight, each term
    over its own weight in the *global* batch:

        totals = weight_sums(batch["targets"])                    # the whole batch, before it is cut into microbatches
        loss = objective.loss(features, part["targets"], chunks=4).mean(totals)   # of one part: losses, gradients add up
    """

    loss: dict[str, Array]  # term -> sum of weighted losses, float32 scalars, nats
    weight: dict[str, Array]  # term -> sum of weights
    metrics: dict[str, tuple[Array, Array]]  # name -> (sum, weight); the metric is sum / weight

    def mean(self, totals: dict[str, Array] | None = None) -> Array:
        """The loss to descend: sum over terms of loss / weight.

        Args:
          totals: weights of the global batch, from `weight_sums`; None: these sums are the whole batch.

        Returns:
          float32 scalar; 0 for a term whose weight is 0 (a batch of padding).
        """
        totals = self.weight if totals is None else totals
        return sum(ratio(self.loss[term], totals[term]) for term in self.loss)


def weight_sums(targets: dict[str, Array]) -> dict[str, Array]:
    """The weight of each term: every floating array among the targets is a weight, and nothing else is."""
    return {key: jnp.sum(x, dtype=jnp.float32) for key, x in targets.items() if jnp.issubdtype(x.dtype, jnp.floating)}


def ratio(total: Array, weight: Array) -> Array:
    """total / weight, and 0 where there was no weight."""
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), 0.0)
