"""Scaled dot-product attention that holds all T x S weights.

This is the plain implementation, and the reference for the others.
"""

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.attentions.arguments import Arguments, scores
from flaxformer_lite.nn.functions import kernels
from flaxformer_lite.nn.functions.device_ops import ATTENTION, name_arrays, ops_of


def attend(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: Arguments, /
) -> jax.Array:
    """Computes `softmax(scale Q K^T + bias) V` over the visible columns, for each head.

        >>> from flaxformer_lite.nn.functions import masks
        >>> q = k = v = jnp.ones((2, 5, 4, 8))
        >>> attend(q, k, v, Arguments(mask=masks.causal())).shape
        (2, 5, 4, 8)

    Args:
      q_BTNH, k_BSKH, v_BSKH: queries, keys and values, as in `dispatch.attention`.
      args: the other arguments of `dispatch.attention`.

    Returns:
      [B, T, N, H] in the dtype of the values.

    Raises:
      ValueError: the shapes do not fit each other.

    Reference: Vaswani et al. 2017, section 3.2.1 (arXiv:1706.03762); grouped queries, Ainslie et
    al. 2023 (arXiv:2305.13245); soft cap, Gemma 2 (arXiv:2408.00118), section 2.
    """
    scores_BNTS, visible_BTS = logits(q_BTNH, k_BSKH, v_BSKH, args)
    factor = dropout_factor(args, scores_BNTS.shape)
    return name_arrays(
        ATTENTION, kernels.softmax_pool(scores_BNTS, v_BSKH, visible_BTS, factor, sinks_of(args))
    )


def weights(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: Arguments, /
) -> jax.Array:
    """Computes the weights of `attend` before dropout.

    Args:
      q_BTNH, k_BSKH, v_BSKH, args: as in `attend`.

    Returns:
      float32 [B, N, T, S]; a row sums to one, or to zero if it sees nothing; to less than one with
      sinks.
    """
    return kernels.softmax(*logits(q_BTNH, k_BSKH, v_BSKH, args), sinks_of(args))


def sinks_of(args: Arguments) -> jax.Array | None:
    """Returns the logits of the sinks as float32, or None."""
    if args.sinks_N is None:
        return None
    return args.sinks_N.astype(jnp.float32)


def dropout_factor(args: Arguments, shape: tuple[int, ...]) -> jax.Array | None:
    """Computes the factor that dropout applies to weights of this shape.

    Returns:
      float32, 0 for dropped weights and 1 / (1 - rate) for others; None if nothing is dropped.
    """
    if not args.drops or args.dropout_key is None:
        return None
    keep_BNTS = ops_of(args.sharding).draw(args.dropout_key, 1 - args.dropout_rate, shape)
    return keep_BNTS.astype(jnp.float32) / (1 - args.dropout_rate)


def logits(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: Arguments
) -> tuple[jax.Array, jax.Array | None]:
    """Computes float32 logits [B, N, T, S] and their visibility.

    The visibility is bool [B or 1, T, S], or None for all.
    """
    resolved = args.resolve(q_BTNH, k_BSKH, v_BSKH)
    bias = args.bias
    if callable(bias):
        rows_T = jnp.arange(q_BTNH.shape[1], dtype=jnp.int32)
        columns_S = jnp.arange(k_BSKH.shape[1], dtype=jnp.int32)
        bias = bias(q_BTNH, rows_T, columns_S)
    visible_BTS = None
    if resolved.mask is not None:
        visible_BTS = resolved.mask(resolved.q_index_T, resolved.k_index_S)
    return scores(q_BTNH, k_BSKH, bias, resolved.scale, args.softcap), visible_BTS
