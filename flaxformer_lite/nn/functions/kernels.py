"""Kernel attention pooling.

Every output is a mean of values, weighted by a kernel of query and key.

Nadaraya-Watson regression, `f(q) = sum_s K(q, k_s) v_s / sum_s K(q, k_s)`, is the general form;
scaled dot-product attention is the case `K(q, k) = exp(q . k / sqrt(H))`. A row that may attend to
nothing, or has a zero kernel on every key, gets zero weights and zero output, and passes no
gradient back.

    >>> q = jnp.zeros((1, 1, 1, 1)); k = jnp.array([0.0, 0.5, 9.0]).reshape(1, 3, 1, 1); v = k
    >>> # the mean of the values of the two near keys
    >>> float(kernel_attention(q, k, v, kernel=boxcar)[0, 0, 0, 0])
    0.25

Reference: Nadaraya 1964, On estimating regression; Tsai et al. 2019, Transformer Dissection
(arXiv:1908.11775).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

# width of a TPU's vector unit: a narrower last axis is padded to it, in memory and in products
TPU_LANES = 128
# a logit that softmax turns into zero next to any real one; finite, so that no gradient is NaN
MASKED_LOGIT = -1e30


def check_shapes(q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array) -> None:
    """Refuses queries, keys and values that do not belong to each other."""
    shapes = f"q {q_BTNH.shape}, k {k_BSKH.shape}, v {v_BSKH.shape}"
    if not q_BTNH.ndim == k_BSKH.ndim == v_BSKH.ndim == 4:
        raise ValueError(
            f"{shapes}: each must be [batch, length, heads, head_dim]; one head is an axis of size"
            " one."
        )
    B, _, N, H = q_BTNH.shape
    S, K = k_BSKH.shape[1:3]
    if k_BSKH.shape != (B, S, K, H) or v_BSKH.shape[:3] != (B, S, K):
        raise ValueError(
            f"{shapes}: batch and head_dim of q and k, and batch, length, heads of k and v must"
            " agree."
        )
    if N % K:
        raise ValueError(
            f"q has {N} heads, k and v have {K}: query heads must be a multiple of key and value"
            " heads."
        )


def gaussian(squared_distance: jax.Array) -> jax.Array:
    """Computes `exp(-u^2 / 2)`; beyond u = 13 it underflows to 0 in float32."""
    return jnp.exp(-0.5 * squared_distance)


def boxcar(squared_distance: jax.Array) -> jax.Array:
    """Computes `1 if u <= 1 else 0`, for a plain mean of the near values.

    No gradient reaches queries or keys.
    """
    return (squared_distance <= 1).astype(squared_distance.dtype)


def epanechnikov(squared_distance: jax.Array) -> jax.Array:
    """Computes `max(0, 1 - u^2)`, the kernel of least mean squared error (Epanechnikov 1969)."""
    return jnp.maximum(1 - squared_distance, 0)


def squared_distances(q_BTNH: jax.Array, k_BSKH: jax.Array, /) -> jax.Array:
    """Computes `|q - k|^2` of all queries and keys.

    Args:
      q_BTNH: queries.
      k_BSKH: keys; N must be a multiple of K.

    Returns:
      float32 [B, N, T, S].
    """
    q_BTNH = q_BTNH.astype(jnp.float32)
    k_BSKH = k_BSKH.astype(jnp.float32)
    q_BNT1 = jnp.einsum("BTNH,BTNH->BNT", q_BTNH, q_BTNH)[..., None]
    k_BKS = jnp.einsum("BSKH,BSKH->BKS", k_BSKH, k_BSKH)
    k_BN1S = jnp.repeat(k_BKS, q_BTNH.shape[2] // k_BSKH.shape[2], axis=1)[:, :, None, :]
    # Rounding may leave the distance of equal vectors slightly negative.
    return jnp.maximum(q_BNT1 + k_BN1S - 2 * dot_products(q_BTNH, k_BSKH), 0)


def dot_products(q_BTNH: jax.Array, k_BSKH: jax.Array, /) -> jax.Array:
    """Computes `q . k` of all queries and keys.

    Args:
      q_BTNH: queries.
      k_BSKH: keys; query head n uses key head n // (N / K), without repeating keys.

    Returns:
      float32 [B, N, T, S].
    """
    B, T, N, H = q_BTNH.shape
    S, K = k_BSKH.shape[1:3]
    # Heads first, as in the cache, which XLA:CPU would otherwise transpose for every token.
    if T == 1:
        q_BKGH = q_BTNH.reshape(B, K, N // K, H)
        k_BKSH = jnp.swapaxes(k_BSKH, 1, 2)
        dots_BKGS = jnp.einsum(
            "BKGH,BKSH->BKGS", q_BKGH, k_BKSH, preferred_element_type=jnp.float32
        )
        return dots_BKGS.reshape(B, N, 1, S)
    if N == K:
        return jnp.einsum("BTNH,BSNH->BNTS", q_BTNH, k_BSKH, preferred_element_type=jnp.float32)
    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, H)
    dots_BKGTS = jnp.einsum(
        "BTKGH,BSKH->BKGTS", q_BTKGH, k_BSKH, preferred_element_type=jnp.float32
    )
    return dots_BKGTS.reshape(B, N, T, S)


def additive_scores(q_BTNH: jax.Array, k_BSKH: jax.Array, /, weights_NH: jax.Array) -> jax.Array:
    """Computes `w . tanh(q + k)` of all projected queries and keys.

    Holds an array of B x T x S x N x H numbers.

    Args:
      q_BTNH: queries.
      k_BSKH: keys; K is N or 1.
      weights_NH: w.

    Returns:
      float32 [B, N, T, S].

    Reference: Bahdanau et al. 2015, appendix A.1.2 (arXiv:1409.0473).
    """
    hidden_BTSNH = jnp.tanh(q_BTNH[:, :, None] + k_BSKH[:, None])
    return jnp.einsum(
        "BTSNH,NH->BNTS", hidden_BTSNH, weights_NH, preferred_element_type=jnp.float32
    )


def normalize(kernel_BNTS: jax.Array, visible_BTS: jax.Array | None = None) -> jax.Array:
    """Normalizes a nonnegative kernel to weights `K(q, k_s) / sum_s K(q, k_s)`.

    A row of zeros stays zero.

    Args:
      kernel_BNTS: float, nonnegative.
      visible_BTS: bool [B or 1, T, S], True = counts.
    """
    if visible_BTS is not None:
        kernel_BNTS = jnp.where(visible_BTS[:, None], kernel_BNTS, 0)
    total_BNT1 = kernel_BNTS.sum(axis=-1, keepdims=True)
    return kernel_BNTS / jnp.where(total_BNT1 > 0, total_BNT1, 1)


def softmax(
    scores_BNTS: jax.Array,
    visible_BTS: jax.Array | None = None,
    sinks_N: jax.Array | None = None,
) -> jax.Array:
    """Computes `normalize(exp(scores), visible)` without overflow.

    These are the weights of the exponential kernel.

    Args:
      scores_BNTS: float32, finite.
      visible_BTS: bool [B or 1, T, S], True = counts.
      sinks_N: logit of one more column of each head, whose weight is left out.
    """
    if sinks_N is not None:
        kernel_BNTS, total_BTN1 = _exponentials(scores_BNTS, visible_BTS, sinks_N)
        return kernel_BNTS / jnp.swapaxes(total_BTN1, 1, 2)
    if visible_BTS is None:
        return jax.nn.softmax(scores_BNTS, axis=-1)
    visible_B1TS = visible_BTS[:, None]
    weights_BNTS = jax.nn.softmax(jnp.where(visible_B1TS, scores_BNTS, MASKED_LOGIT), axis=-1)
    # matters only for a row that sees nothing, which would be uniform
    return jnp.where(visible_B1TS, weights_BNTS, 0)


def pool(
    weights_BNTS: jax.Array, v_BSKH: jax.Array, /, *, dtype: DTypeLike | None = None
) -> jax.Array:
    """Computes the weighted means `sum_s w_s v_s` [B, T, N, H].

    Query head n reads value head n // (N / K).

    Args:
      weights_BNTS: weights; rounded to the dtype of the values before the product.
      v_BSKH: values.
      dtype: dtype of the result; None is the values'.

    Raises:
      ValueError: the shapes do not fit each other.
    """
    shapes = f"weights {jnp.shape(weights_BNTS)}, v {jnp.shape(v_BSKH)}"
    if len(jnp.shape(weights_BNTS)) != 4 or len(jnp.shape(v_BSKH)) != 4:
        raise ValueError(
            f"{shapes}: must be [batch, heads, target, source] and [batch, source, heads, width]."
        )
    B, N, T, S = weights_BNTS.shape
    K, H = v_BSKH.shape[2:]
    if v_BSKH.shape[:2] != (B, S) or N % K:
        raise ValueError(
            f"{shapes}: batch and source must agree, and the heads of the weights be a multiple of"
            " those of v."
        )
    weights_BNTS = weights_BNTS.astype(v_BSKH.dtype)
    if T == 1:  # as in dot_products
        weights_BKGS = weights_BNTS.reshape(B, K, N // K, S)
        v_BKSH = jnp.swapaxes(v_BSKH, 1, 2)
        return jnp.einsum(
            "BKGS,BKSH->BKGH", weights_BKGS, v_BKSH, preferred_element_type=dtype
        ).reshape(B, 1, N, H)
    if N == K:
        return jnp.einsum("BNTS,BSNH->BTNH", weights_BNTS, v_BSKH, preferred_element_type=dtype)
    weights_BKGTS = weights_BNTS.reshape(B, K, N // K, T, S)
    out_BTKGH = jnp.einsum("BKGTS,BSKH->BTKGH", weights_BKGTS, v_BSKH, preferred_element_type=dtype)
    return out_BTKGH.reshape(B, T, N, H)


@jax.custom_jvp
def softmax_pool(
    scores_BNTS: jax.Array,
    v_BSKH: jax.Array,
    visible_BTS: jax.Array | None = None,
    factor_BNTS: jax.Array | None = None,
    sinks_N: jax.Array | None = None,
    /,
) -> jax.Array:
    """Computes `pool(factor * softmax(scores), v)`, keeping one T x S array for the backward pass.

    That array is `exp(scores - top)`; with the sum of each row, it gives all derivatives, where a
    plain softmax would keep two or three such arrays. Row means are computed from the same products
    that they are subtracted from, and not from output and gradient, so that rounding errors cancel.
    The T x H outputs are divided by the sums, and not the T x S weights.

    Args:
      scores_BNTS: float32, finite; a row whose scores are all below MASKED_LOGIT / 2 sees nothing.
      v_BSKH: values.
      visible_BTS: bool [B or 1, T, S], True = counts; a row that sees nothing has output zero.
      factor_BNTS: multiplies the weights after the softmax (dropout); no gradient reaches it.
      sinks_N: float32, logit of one more column of each head, which has no value; every row sees
        it.

    Returns:
      [B, T, N, H] in the dtype of the values.
    """
    kernel_BNTS, total_BTN1 = _exponentials(scores_BNTS, visible_BTS, sinks_N)
    return _mean(kernel_BNTS, total_BTN1, factor_BNTS, v_BSKH)


@softmax_pool.defjvp
def _softmax_pool_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    scores_BNTS, v_BSKH, visible_BTS, factor_BNTS, sinks_N = primals
    d_scores_BNTS, d_v_BSKH = tangents[:2]
    kernel_BNTS, total_BTN1 = _exponentials(scores_BNTS, visible_BTS, sinks_N)
    mean_BNT1 = (kernel_BNTS * d_scores_BNTS).sum(axis=-1, keepdims=True) / jnp.swapaxes(
        total_BTN1, 1, 2
    )
    if sinks_N is not None:
        sink_BNT1 = 1 - (kernel_BNTS / jnp.swapaxes(total_BTN1, 1, 2)).sum(axis=-1, keepdims=True)
        mean_BNT1 += sink_BNT1 * tangents[4][None, :, None, None]
    d_kernel_BNTS = kernel_BNTS * (d_scores_BNTS - mean_BNT1)
    d_out = _mean(d_kernel_BNTS, total_BTN1, factor_BNTS, v_BSKH) + _mean(
        kernel_BNTS, total_BTN1, factor_BNTS, d_v_BSKH
    )
    return _mean(kernel_BNTS, total_BTN1, factor_BNTS, v_BSKH), d_out


def _exponentials(
    scores_BNTS: jax.Array, visible_BTS: jax.Array | None, sinks_N: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Computes exp(scores - maximum of the row), and the sum of each row [B, T, N, 1].

    Maximum and sum include the sink. The sum is 1 if nothing is visible.
    """
    if visible_BTS is not None:
        scores_BNTS = jnp.where(visible_BTS[:, None], scores_BNTS, MASKED_LOGIT)
    # Below, the maximum is at least MASKED_LOGIT / 2, so that a row that sees nothing is zero
    # without a second mask. The derivative of the maximum cancels, but would be NaN if XLA computed
    # a score twice and rounded it differently.
    top_BNT1 = jax.lax.stop_gradient(scores_BNTS).max(axis=-1, keepdims=True)
    if sinks_N is not None:
        sinks_1N11 = sinks_N[None, :, None, None]
        top_BNT1 = jnp.maximum(top_BNT1, jax.lax.stop_gradient(sinks_1N11))
        kernel_BNTS = jnp.exp(scores_BNTS - top_BNT1)
        total_BNT1 = kernel_BNTS.sum(axis=-1, keepdims=True) + jnp.exp(sinks_1N11 - top_BNT1)
        return kernel_BNTS, jnp.swapaxes(total_BNT1, 1, 2)
    kernel_BNTS = jnp.exp(scores_BNTS - jnp.maximum(top_BNT1, MASKED_LOGIT / 2))
    total_BTN1 = jnp.swapaxes(kernel_BNTS.sum(axis=-1, keepdims=True), 1, 2)
    return kernel_BNTS, jnp.where(total_BTN1 > 0, total_BTN1, 1)


def _mean(
    kernel_BNTS: jax.Array, total_BTN1: jax.Array, factor_BNTS: jax.Array | None, v_BSKH: jax.Array
) -> jax.Array:
    if factor_BNTS is not None:
        kernel_BNTS *= factor_BNTS
    if v_BSKH.dtype == jnp.float32:
        return pool(kernel_BNTS, v_BSKH) / total_BTN1
    # A separate pass rounds the weights to the dtype of the values. A division costs nothing there,
    # and only its result is rounded.
    return pool(kernel_BNTS / jnp.swapaxes(total_BTN1, 1, 2), v_BSKH)


def kernel_weights(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    /,
    *,
    kernel: Callable[[jax.Array], jax.Array] = gaussian,
    bandwidth: jax.Array | float = 1.0,
    score: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    visible_BTS: jax.Array | None = None,
) -> jax.Array:
    """Computes the Nadaraya-Watson weights of a kernel.

    The kernel is a function of the distance, `K(q, k) = kernel(|q - k|^2 / bandwidth^2)`, or is
    given by its logarithm, `K(q, k) = exp(score(q, k))`.

    If all keys have the same length, the Gaussian of bandwidth `H ** 0.25` gives the weights of
    scaled dot-product attention: `exp(-|q - k|^2 / 2 sqrt(H))` and `exp(q . k / sqrt(H))` then
    differ by one factor per row, which normalization removes.

    Args:
      q_BTNH: queries.
      k_BSKH: keys; N is a multiple of K.
      kernel: nonnegative function of the squared distance, such as `gaussian`, `boxcar` or
        `epanechnikov`.
      bandwidth: the distance at which the kernel's argument is one. A traced bandwidth, as of a
        learned one, is not checked.
      score: function of queries and keys that returns float32 [B, N, T, S], such as `dot_products`.
        Replaces the kernel.
      visible_BTS: bool [B or 1, T, S], True = counts.

    Returns:
      float32 [B, N, T, S]; rows sum to one, or are zero where no key counts.

    Raises:
      ValueError: the bandwidth is not positive, or shapes do not fit each other.
    """
    for name, array in (("q", q_BTNH), ("k", k_BSKH)):
        if not hasattr(array, "shape"):
            raise TypeError(f"{name} is {type(array).__name__}: must be an array.")
    check_shapes(q_BTNH, k_BSKH, k_BSKH)
    seen = None if visible_BTS is None else jnp.shape(visible_BTS)
    B, T = q_BTNH.shape[:2]
    if seen is not None and seen not in ((B, T, k_BSKH.shape[1]), (1, T, k_BSKH.shape[1])):
        raise ValueError(
            f"visible has shape {seen}: must be [1 or {B}, {T}, {k_BSKH.shape[1]}], batch, target"
            " and source."
        )
    if score is not None:
        return softmax(score(q_BTNH, k_BSKH), visible_BTS)
    is_known = not isinstance(bandwidth, jax.core.Tracer)
    if bandwidth is None or (is_known and np.any(np.asarray(bandwidth) <= 0)):
        raise ValueError(f"bandwidth={bandwidth}: a distance, must be positive.")
    return normalize(kernel(squared_distances(q_BTNH, k_BSKH) / bandwidth**2), visible_BTS)


def kernel_attention(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, /, **options: Any
) -> jax.Array:
    """Regresses the values on the keys with a kernel, as Nadaraya and Watson do.

    Args:
      q_BTNH: the points at which to predict.
      k_BSKH: the points of the data.
      v_BSKH: the values at these points.
      **options: as in `kernel_weights`.

    Returns:
      The predictions, [B, T, N, H].

    Reference: Nadaraya 1964, "On Estimating Regression"; Watson 1964, "Smooth Regression Analysis".
    """
    return pool(kernel_weights(q_BTNH, k_BSKH, **options), v_BSKH)
