"""Sparse vectors over the vocabulary: a weight for each token that a text is about."""

import dataclasses

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.functions.losses import DeferredLogits

MAX_LOGITS = 1 << 24  # float32 logits that exist at a time
STRATEGIES = ("max", "sum")
ACTIVATIONS = ("relu", "log1p_relu")


def splade(
    projection: DeferredLogits,
    mask_BT: jax.Array,
    *,
    strategy: str = "max",
    activation: str = "relu",
    most_logits: int = MAX_LOGITS,
) -> jax.Array:
    """Computes max_t log(1 + relu(logits_t)), float32 [B, V].

    Logits exist for some tokens at a time, also in the backward pass, so that batch x length x
    vocabulary never exists whole.

    Args:
      projection: the logits of a masked language model, with x [B, T, D].
      mask_BT: nonzero for a text's tokens.
      strategy: `max`, or `sum` over tokens, as in the first paper.
      activation: `relu`, or `log1p_relu` for a second logarithm, log(1 + log(1 + relu(x))).
      most_logits: number of logits that exist at a time; at least those of one token of each text.

    References: Formal et al. 2021, "SPLADE" (arXiv:2107.05720) and "SPLADE v2" (arXiv:2109.10086).
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy!r}: must be one of {', '.join(STRATEGIES)}.")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r}: must be one of {', '.join(ACTIVATIONS)}.")
    batch, length, width = projection.x.shape
    vocabulary = projection.kernel_VD.shape[0]
    size = max(1, min(length, most_logits // (batch * vocabulary)))
    count = -(-length // size)
    missing = count * size - length
    x_BTD = jnp.pad(projection.x, ((0, 0), (0, missing), (0, 0)))
    real_BT = jnp.pad(mask_BT.astype(bool), ((0, 0), (0, missing)))
    x_NBCD = jnp.swapaxes(x_BTD.reshape(batch, count, size, width), 0, 1)
    real_NBC = jnp.swapaxes(real_BT.reshape(batch, count, size), 0, 1)

    def weights(logits: jax.Array) -> jax.Array:
        positive = jnp.log1p(jax.nn.relu(logits))
        if activation == "log1p_relu":
            return jnp.log1p(positive)
        return positive

    @jax.checkpoint
    def body(so_far_BV: jax.Array, item: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        x_BCD, real_BC = item
        logits_BCV = dataclasses.replace(projection, x=x_BCD).logits()
        if strategy == "sum":
            kept_BCV = jnp.where(real_BC[:, :, None], weights(logits_BCV), 0.0)
            return so_far_BV + kept_BCV.sum(axis=1), None
        kept_BCV = jnp.where(real_BC[:, :, None], logits_BCV, -jnp.inf)
        return jnp.maximum(so_far_BV, kept_BCV.max(axis=1)), None

    start = 0.0 if strategy == "sum" else -jnp.inf
    first_BV = jnp.full((batch, vocabulary), start, jnp.float32)
    pooled_BV = jax.lax.scan(body, first_BV, (x_NBCD, real_NBC))[0]
    # weights grow with their logits, so the largest logit has the largest weight
    if strategy == "sum":
        return pooled_BV
    return weights(pooled_BV)


def flops(vectors_NV: jax.Array, weight_N: jax.Array) -> jax.Array:
    """Computes the FLOPS regularizer, the sum over the vocabulary of the squared mean weight.

    It is the expected number of products that comparing two such vectors takes.

    Args:
      vectors_NV: nonnegative sparse vectors.
      weight_N: weights of the mean; padding has weight 0.

    Reference: Paria et al. 2020, "Minimizing FLOPs to learn efficient sparse representations"
    (arXiv:2004.05665).
    """
    total = jnp.maximum(weight_N.sum(), 1.0)
    mean_V = jnp.einsum("NV,N->V", vectors_NV, weight_N, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum((mean_V / total) ** 2)
