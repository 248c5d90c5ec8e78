"""Losses as sums and weights.

Sums of microbatches, devices and processes therefore add up to the loss of the whole batch.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.nn.functions.losses import DeferredLogits, SoftTargets, cross_entropy
from flaxformer_lite.types import Arrays

Array = jax.Array
TOKENS = "weights"  # the term of an objective's tokens
# The prefix of targets, bool [B], that say whether a row is from a source of a mixture.
SOURCE = "source/"
LOAD = "load/"  # the prefix of metrics of the load of an expert, by layer and number
BY_SOURCE = "loss/"  # the prefix of metrics of the loss of a source


class LossSums(NamedTuple):
    """The sums of an objective over a batch or a part of one.

    Parts add leaf by leaf: `jax.tree.map(jnp.add, a, b)`.

    A term is named after its weights, a float32 array in `targets`: `weights` for tokens,
    `next_sentence_weight` for pairs. The loss of a batch is the sum over terms of loss / weight,
    each with its weight in the *global* batch:

        totals = weight_sums(batch["targets"])  # of the whole batch
        for part in microbatches:
            sums = objective.loss(features, part["targets"], chunks=4)
            loss += sums.mean(totals)  # the losses of parts add up
    """

    loss: dict[str, Array]  # term -> sum of weighted losses, float32 scalars, nats
    weight: dict[str, Array]  # term -> sum of weights
    metrics: dict[str, tuple[Array, Array]]  # name -> (sum, weight); the metric is sum / weight

    def mean(self, totals: dict[str, Array] | None = None) -> Array:
        """Computes the loss to minimize: the sum over terms of loss / weight.

        Args:
          totals: weights of the global batch, from `weight_sums`; None if these sums cover the
            whole batch.

        Returns:
          float32 scalar; a term of weight 0 (a batch of padding) adds 0.
        """
        if totals is None:
            totals = self.weight
        means = (divide_or_empty(self.loss[term], totals[term]) for term in self.loss)
        return sum(means, start=jnp.float32(0))

    def means(self) -> dict[str, jax.Array]:
        """Computes the loss and the mean of each metric from sums over a whole batch.

        Returns:
          float32 scalars by name. The loss of a source of a mixture that has no rows is NaN.
        """
        means = {"loss": self.mean()}
        for name, (total, weight) in self.metrics.items():
            empty = jnp.nan if name.startswith(BY_SOURCE) else 0.0
            means[name] = divide_or_empty(total, weight, empty)
        return means

    def with_auxiliary(self, losses: dict[str, Array]) -> "LossSums":
        """Adds auxiliary terms, such as a router's balance.

        They are means over the part, weighted by its tokens.
        """
        weight = self.weight[self.anchor]
        terms = {name: value.astype(jnp.float32) * weight for name, value in losses.items()}
        return LossSums(
            {**self.loss, **terms},
            {**self.weight, **dict.fromkeys(terms, weight)},
            {**self.metrics, **{name: (total, weight) for name, total in terms.items()}},
        )

    def with_loads(self, loads: dict[str, Array]) -> "LossSums":
        """Adds metrics of how many choices of tokens fell on each expert [X]; 1 is the mean."""
        shares = {name: (loads[name], loads[name].mean()) for name in sorted(loads)}
        return self._replace(metrics={**self.metrics, **shares})

    @property
    def anchor(self) -> str:
        """The term whose weight auxiliary losses take: the tokens', or else the first."""
        return TOKENS if TOKENS in self.weight else next(iter(self.weight))

    def times_tokens(self, totals: dict[str, Array]) -> Array:
        """Computes `mean(totals)` times the weight of the tokens, `tokens(totals)`.

        Its derivative with respect to the sum over tokens is exactly 1, so the gradients that the
        fused loss made in its forward pass need not be scaled, or copied for it.
        """
        total = self.loss.get(TOKENS, jnp.float32(0))
        for term in self.loss:
            if term != TOKENS:
                total = (
                    total + divide_or_empty(token_weight(totals), totals[term]) * self.loss[term]
                )
        return total


def token_weight(totals: dict[str, Array]) -> Array:
    """Returns the weight of the tokens in the global batch.

    Returns 1 if that is 0 or the objective has no tokens.
    """
    weight = totals.get(TOKENS, jnp.float32(1))
    return jnp.where(weight > 0, weight, 1.0)


def losses_of_routers(sums: Arrays) -> dict[str, Array]:
    """Returns the losses of the routers of a stack, by name, as transformers has them.

    `load_balancing` is the mean over groups of X sum_e f_e P_e, where the sum of all f_e is the
    number of experts of a token, and `router_z` that of the mean square of the normalizer.

    Args:
      sums: of nn/functions/routing.py's `router_sums`, over all layers.
    """
    tokens_G = jnp.maximum(sums["tokens"], 1.0)
    losses = {}
    if "load" in sums:
        load_GX = sums["load"] / tokens_G[:, None]
        product_GX = load_GX * sums["probability"] / tokens_G[:, None]
        losses["load_balancing"] = product_GX.sum(axis=-1).mean()
    if "square" in sums:
        losses["router_z"] = jnp.mean(sums["square"] / tokens_G)
    return losses


def weight_sums(targets: Arrays) -> dict[str, Array]:
    """Sums the weight of each term: exactly the floating arrays among the targets are weights."""
    counts = {}
    for key, x in targets.items():
        if jnp.issubdtype(x.dtype, jnp.floating):
            counts[key] = jnp.sum(x, dtype=jnp.float32)
    return counts


def divide_or_empty(total: Array, weight: Array, empty: float = 0.0) -> Array:
    """Computes total / weight, or `empty` if the weight is 0."""
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), empty)


class Regularized(Protocol):
    """An objective with the options of `cross_entropy` that change the loss."""

    @property
    def z_loss(self) -> float: ...

    @property
    def label_smoothing(self) -> float: ...


class Projected(Protocol):
    """Output of a model for a loss over the vocabulary: logits that are not yet computed."""

    @property
    def projection(self) -> DeferredLogits: ...


class Loss(Protocol):
    """Protocol of the objective (objectives/base.py) of a training step."""

    def loss(self, outputs: Any, targets: Arrays, *, chunks: int) -> LossSums: ...

    def predictions(self, outputs: Any) -> dict[str, jax.Array]: ...


def token_loss(
    objective: Regularized,
    features: Projected,
    targets: Arrays,
    chunks: int,
    soft: SoftTargets | None = None,
) -> LossSums:
    """Computes the cross entropy of tokens, with the objective's `z_loss` and `label_smoothing`.

    Args:
      objective: holds the two options.
      features: has `.projection`, with x [B, T, D].
      targets: labels [B, T] int32 and weights [B, T] float32.
      chunks: number of chunks; the logits of one exist at a time.
      soft: a teacher's logits to mix in.

    Returns:
      Sums; metrics are `nll`, the plain negative log-likelihood in nats (for perplexity),
      `accuracy` and, with a teacher, `divergence`.
    """
    by_row = any(key.startswith(SOURCE) for key in targets)
    entropy = cross_entropy(
        features.projection,
        targets["labels"],
        targets["weights"],
        soft=soft,
        z_loss=objective.z_loss,
        label_smoothing=objective.label_smoothing,
        chunks=chunks,
        by_row=by_row,
    )
    weight = entropy.weight_sum
    metrics = {"nll": (entropy.nll_sum, weight), "accuracy": (entropy.correct_sum, weight)}
    if entropy.soft_sum is not None:
        metrics["divergence"] = entropy.soft_sum, weight
    if entropy.nll_B is not None:
        metrics |= by_source(targets, entropy.nll_B)
    return LossSums({TOKENS: entropy.loss_sum}, {TOKENS: weight}, metrics)


def by_source(targets: Arrays, loss_B: Array) -> dict[str, tuple[Array, Array]]:
    """Sums the losses and token weights of rows by source of a mixture; {} if there is none."""
    weight_B = targets[TOKENS].reshape(len(loss_B), -1).sum(axis=1, dtype=jnp.float32)
    sums = {}
    for key, is_own_B in targets.items():
        if not key.startswith(SOURCE):
            continue
        loss = jnp.where(is_own_B, loss_B, 0.0).sum()
        weight = jnp.where(is_own_B, weight_B, 0.0).sum()
        sums[BY_SOURCE + key.removeprefix(SOURCE)] = (loss, weight)
    return sums


def sum_weighted(loss: Array, weights: Array, **right: Array) -> LossSums:
    """Sums losses by their weights, and counts correct predictions.

    Args:
      loss: float32, of any shape.
      weights: float32, of the same shape.
      **right: bool, of the same shape; a metric by that name is their mean by weight.
    """
    count = weights.sum()
    metrics = {}
    for name, is_right in right.items():
        metrics[name] = (jnp.where(is_right, weights, 0.0).sum(), count)
    return LossSums({TOKENS: (loss * weights).sum()}, {TOKENS: count}, metrics)


def class_loss(logits: Array, labels: Array, weights: Array) -> LossSums:
    """Sums the cross entropy of classes by weight, with the metric `accuracy`.

    Args:
      logits: float32 [..., C].
      labels: the right classes, integers [...].
      weights: float32 [...].
    """
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return sum_weighted(loss, weights, accuracy=jnp.argmax(logits, axis=-1) == labels)
