"""Scaled dot-product attention that holds all T x S weights: the plain form, and the reference for the others."""

import jax
import jax.numpy as jnp

from flaxformer_lite.attentions import arguments
from flaxformer_lite.functions import kernels, masks


def attend(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    /,
    *,
    mask: masks.Mask | jax.Array | None = None,
    bias: arguments.Bias | jax.Array | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    q_index: jax.Array | None = None,
    k_index: jax.Array | None = None,
) -> jax.Array:
    """`softmax(scale Q K^T + bias) V` over the visible columns, one head beside the other.

        >>> q = k = v = jnp.ones((2, 5, 4, 8))
        >>> attend(q, k, v, mask=masks.causal()).shape
        (2, 5, 4, 8)

    The order is scale, soft cap, bias, mask, softmax, dropout. Logits and softmax are float32 whatever the inputs. A
    row that sees nothing has output zero, and sends back no gradient.

    Args:
      q_BTNH: queries.
      k_BSKH: keys. K = N is multi-head, K = 1 multi-query, between is grouped-query: query head n reads key head
        n // (N / K).
      v_BSKH: values; their head width may differ from the keys'.
      mask: a `Mask`, asked about slots `q_index` and `k_index`; or a boolean array [B or 1, T, S], True = may attend;
        [T, S] and [B or 1, 1, T, S] mean the same.
      bias: finite logits to add: an array [B or 1, N or 1, T, S], or a function of (q, rows, columns) that makes one,
        with rows and columns the int32 numbers of the positions in `q` and `k` as passed here (not slots).
      scale: of the dot products; None is 1 / sqrt(H).
      softcap: c of `c tanh(logits / c)`; 0 is none.
      dropout_rate: fraction of the weights to drop; needs `dropout_key`, without which nothing is dropped.
      dropout_key: PRNG key.
      q_index: int32 [T], the slot of each row, for masks; None is 0, 1, 2 ...
      k_index: int32 [S], the slot of each column; below zero the column is empty, and unseen.

    Returns:
      Array [B, T, N, H] in the dtype of the values.

    Raises:
      ValueError: shapes that do not fit each other.

    Reference: Vaswani et al. 2017, section 3.2.1 (arXiv:1706.03762); grouped queries, Ainslie et al. 2023
      (arXiv:2305.13245); soft cap, Gemma 2 (arXiv:2408.00118), section 2.
    """
    scores_BNTS, visible_BTS = _scores(q_BTNH, k_BSKH, v_BSKH, mask, bias, scale, softcap, q_index, k_index)
    factor_BNTS = None
    if dropout_key is not None and dropout_rate > 0:
        keep_BNTS = jax.random.bernoulli(dropout_key, 1 - dropout_rate, scores_BNTS.shape)
        factor_BNTS = keep_BNTS.astype(jnp.float32) / (1 - dropout_rate)
    return kernels.softmax_pool(scores_BNTS, v_BSKH, visible_BTS, factor_BNTS)


def weights(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    /,
    *,
    mask: masks.Mask | jax.Array | None = None,
    bias: arguments.Bias | jax.Array | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    q_index: jax.Array | None = None,
    k_index: jax.Array | None = None,
) -> jax.Array:
    """The weights of `attend`, float32 [B, N, T, S] before dropout: rows sum to one, or are zero where nothing is seen.

    The arguments are those of `attend`.
    """
    return kernels.softmax(*_scores(q_BTNH, k_BSKH, v_BSKH, mask, bias, scale, softcap, q_index, k_index))


def _scores(q_BTNH, k_BSKH, v_BSKH, mask, bias, scale, softcap, q_index, k_index) -> tuple[jax.Array, jax.Array | None]:
    """Logits float32 [B, N, T, S], and what is visible of them, bool [B or 1, T, S] or None for all."""
    inputs = arguments.prepare(q_BTNH, k_BSKH, v_BSKH, mask, bias, scale, q_index, k_index)
    if callable(bias):
        rows_T, columns_S = (jnp.arange(x.shape[1], dtype=jnp.int32) for x in (q_BTNH, k_BSKH))
        bias = bias(q_BTNH, rows_T, columns_S)
    visible_BTS = None if inputs.mask is None else inputs.mask(inputs.q_index_T, inputs.k_index_S)
    return arguments.scores(q_BTNH, k_BSKH, bias, inputs.scale, softcap), visible_BTS
