"""Losses as sums and weights, so that microbatches, devices and processes add up to exactly the loss of the whole batch."""

from typing import Any, NamedTuple

import jax

from flaxformer_lite.functions.losses import cross_entropy


class LossSums(NamedTuple):
    """What an objective makes of a batch or of a part of one; parts add leaf by leaf.

    The loss is loss_sum / weight_sum, divided once, after all parts have been added.
    """

    loss_sum: jax.Array  # float32 scalar, nats
    weight_sum: jax.Array  # float32 scalar, targets that count
    metrics: dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, weight); the metric is sum / weight


def token_loss(objective: Any, features: Any, targets: dict[str, jax.Array], chunks: int) -> LossSums:
    """Cross entropy of tokens, with the objective's `z_loss` and `label_smoothing`.

    Args:
      objective: holds the two options.
      features: has `.projection`, of x [B, T, D].
      targets: labels [B, T] int32 and weights [B, T] float32.
      chunks: pieces whose logits exist at once.

    Returns:
      Sums; metrics are `nll`, the bare negative log-likelihood in nats (for perplexity), and `accuracy`.
    """
    entropy = cross_entropy(
        features.projection,
        targets["labels"],
        targets["weights"],
        z_loss=objective.z_loss,
        label_smoothing=objective.label_smoothing,
        chunks=chunks,
    )
    weight = entropy.weight_sum
    metrics = {"nll": (entropy.nll_sum, weight), "accuracy": (entropy.correct_sum, weight)}
    return LossSums(entropy.loss_sum, weight, metrics)


def check(objective: Any) -> None:
    """The rules for options that all objectives share.

    Raises:
      ValueError: an option out of range.
    """
    if not 0 <= objective.label_smoothing < 1:
        raise ValueError(f"label_smoothing={objective.label_smoothing}: a probability in [0, 1).")
    if objective.z_loss < 0:
        raise ValueError(f"z_loss={objective.z_loss}: must not be negative; 0 is none.")
