"""Attention of blocks of tokens to their neighbors, and to a few keys that all of them read.

A block sees the block before it, itself and the block after it, so time and memory grow with the
length and not with its square. Long rows are computed a few blocks at a time, and once more in the
backward pass, so that scores never take more than a fixed amount of memory.

    T = 12 tokens in blocks of 4, radius 3:  block 1 reads columns 0 to 11, row 5 sees 2 to 8

Reference: Guo et al. 2022, "LongT5" (arXiv:2112.07916), section 3.1; Zaheer et al. 2020, "Big Bird"
(arXiv:2007.14062), appendix D.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.nn.functions import kernels

MOST_SCORES = 2**24  # of one example that exist at the same time, 64 MiB in float32


class Shared(NamedTuple):
    """Keys and values that every block reads, besides its neighbors.

    Attributes:
      k_BSKH, v_BSKH: the keys and values.
      rows: a tree of arrays [B, T, ...] that `logits` reads.
      logits: maps the part of `rows` for some rows to a bias [B or 1, N or 1, T or 1, S] and to
        bool [B, T, S], True = may attend.
    """

    k_BSKH: jax.Array
    v_BSKH: jax.Array
    rows: Any
    logits: Callable[[Any], tuple[jax.Array, jax.Array]]


class _Part(NamedTuple):
    """Some blocks of a row; keys have one block more on each side."""

    q_BQTNH: jax.Array
    k_BQTKH: jax.Array
    v_BQTKH: jax.Array
    q_ids_BQT: jax.Array
    k_ids_BQT: jax.Array
    rows: Any
    number: jax.Array


class WeightDropout(NamedTuple):
    """Dropout of attention weights."""

    key: jax.Array
    rate: float


def attend_blocks(
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    q_ids_BT: jax.Array,
    k_ids_BT: jax.Array,
    /,
    *,
    block: int,
    radius: int | None = None,
    bias_NTS: jax.Array | None = None,
    scale: float,
    softcap: float = 0.0,
    shared: Shared | None = None,
    dropout: WeightDropout | None = None,
) -> jax.Array:
    """Computes `softmax(scale Q K^T + bias) V` over neighboring blocks and the shared keys.

        >>> x = jnp.ones((1, 10, 2, 4)); ids = jnp.ones((1, 10), int)
        >>> attend_blocks(x, x, x, ids, ids, block=4, radius=3, scale=0.5).shape
        (1, 10, 2, 4)

    Args:
      q_BTNH: queries.
      k_BTKH, v_BTKH: keys and values; N is a multiple of K.
      q_ids_BT: int, the document of each row; 0 is padding, which sees no neighbor.
      k_ids_BT: int, the document of each column, visible to rows of the same document.
      block: tokens in a block.
      radius: how far away a visible column may be, less than `block`; None is all three blocks.
      bias_NTS: added to the logits of a block, [N, block, 3 * block].
      scale: factor on the dot products.
      softcap: turns logits into cap * tanh(logits / cap); 0 for none.
      shared: keys and values that all blocks read.
      dropout: None drops nothing.

    Returns:
      [B, T, N, H] in the dtype of the values; zero in rows that see nothing.
    """
    batch, length, heads, _ = q_BTNH.shape
    columns = 3 * block
    if shared is not None:
        columns += shared.k_BSKH.shape[1]
    if radius is None:
        radius = 3 * block
    blocks = -(-length // block)
    parts = -(-blocks * block * heads * columns // MOST_SCORES)
    per_part = -(-blocks // min(parts, blocks))
    parts = -(-blocks // per_part)
    distance_TS = np.arange(3 * block)[None] - block - np.arange(block)[:, None]
    near_1TS = np.abs(distance_TS)[None] <= radius

    def split(x: jax.Array, halo: int) -> jax.Array:
        """Returns parts of x with `halo` blocks on each side, [parts, B, blocks, block, ...]."""
        before = halo * block
        after = (parts * per_part + halo) * block - length
        x = jnp.pad(x, ((0, 0), (before, after), *((0, 0),) * (x.ndim - 2)))
        x = x.reshape(batch, -1, block, *x.shape[2:])
        if parts == 1:
            return x[None]
        first = np.arange(parts)[:, None] * per_part
        taken = jnp.take(x, first + np.arange(per_part + 2 * halo)[None], axis=1)
        return jnp.swapaxes(taken, 0, 1)

    def attend(part: _Part) -> jax.Array:
        """Computes the rows of one part, [B, blocks * block, N, H]."""
        q_BQTNH, k_BQTKH, v_BQTKH, q_ids_BQT, k_ids_BQT, rows, number = part
        q_XTNH = _merge(q_BQTNH)
        scores_XNTS = kernels.dot_products(q_XTNH, _merge(_neighbors(k_BQTKH))) * scale
        if softcap:
            scores_XNTS = softcap * jnp.tanh(scores_XNTS / softcap)
        if bias_NTS is not None:
            scores_XNTS += bias_NTS.astype(jnp.float32)[None]
        q_ids_XT1 = _merge(q_ids_BQT)[:, :, None]
        same_XTS = q_ids_XT1 == _merge(_neighbors(k_ids_BQT))[:, None, :]
        visible_XTS = same_XTS & (q_ids_XT1 != 0) & near_1TS
        if shared is not None:
            q_BTNH = q_BQTNH.reshape(batch, -1, *q_BQTNH.shape[3:])
            more_BNTS = kernels.dot_products(q_BTNH, shared.k_BSKH) * scale
            if softcap:
                more_BNTS = softcap * jnp.tanh(more_BNTS / softcap)
            flat = jax.tree.map(lambda x: x.reshape(batch, -1, *x.shape[3:]), rows)
            bias_BNTS, seen_BTS = shared.logits(flat)
            more_BNTS += bias_BNTS.astype(jnp.float32)
            scores_XNTS = jnp.concatenate([scores_XNTS, _by_block(more_BNTS, block)], axis=-1)
            seen_XTS = seen_BTS.reshape(-1, block, seen_BTS.shape[-1])
            visible_XTS = jnp.concatenate([visible_XTS, seen_XTS], axis=-1)
        weights_XNTS = kernels.softmax(scores_XNTS, visible_XTS)
        if dropout is not None:
            weights_XNTS = drop(weights_XNTS, dropout, number)
        local_XNTS = weights_XNTS[..., : 3 * block]
        out_XTNH = kernels.pool(local_XNTS, _merge(_neighbors(v_BQTKH)))
        out_BTNH = out_XTNH.reshape(batch, -1, *out_XTNH.shape[2:])
        if shared is not None:
            more_BNTS = _by_row(weights_XNTS[..., 3 * block :], batch)
            out_BTNH += kernels.pool(more_BNTS, shared.v_BSKH)
        return out_BTNH

    given = _Part(
        split(q_BTNH, 0),
        split(k_BTKH, 1),
        split(v_BTKH, 1),
        split(q_ids_BT, 0),
        split(k_ids_BT, 1),
        None if shared is None else jax.tree.map(lambda x: split(x, 0), shared.rows),
        jnp.arange(parts),
    )
    if parts == 1:
        return attend(jax.tree.map(lambda x: x[0], given))[:, :length]
    out = jax.lax.map(jax.checkpoint(attend), given)
    return jnp.swapaxes(out, 0, 1).reshape(batch, -1, *out.shape[3:])[:, :length]


def attend_any_length(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    kept_BT: jax.Array,
    /,
    *,
    radius: int,
    bias_NTT: jax.Array | None = None,
    scale: float,
    softcap: float = 0.0,
    shared: tuple[jax.Array, jax.Array] | None = None,
) -> jax.Array:
    """Computes what `attend_blocks` does with scores of all pairs of tokens.

    It is for lengths that are not known while it is traced, which ONNX cannot cut into blocks;
    memory grows with their square.

    Args:
      k_BSKH, v_BSKH: keys and values of the T tokens, then the shared ones.
      kept_BT: bool, False for padding, in rows of one document.
      bias_NTT: added to the logits of tokens.
      shared: what `Shared.logits` returns for all rows.
      q_BTNH, radius, scale, softcap: as in `attend_blocks`.
    """
    batch, length, heads, _ = q_BTNH.shape
    row_T = jnp.arange(length)
    is_near_TT = jnp.abs(row_T[:, None] - row_T[None, :]) <= radius
    visible_BTS = kept_BT[:, :, None] & kept_BT[:, None, :] & is_near_TT[None]
    bias_BNTS = jnp.zeros((batch, heads, length, length), jnp.float32)
    if bias_NTT is not None:
        bias_BNTS += bias_NTT.astype(jnp.float32)[None]
    if shared is not None:
        more_BNTS, seen_BTS = shared
        shape = (batch, heads, *seen_BTS.shape[1:])
        more_BNTS = jnp.broadcast_to(more_BNTS.astype(jnp.float32), shape)
        bias_BNTS = jnp.concatenate([bias_BNTS, more_BNTS], axis=-1)
        visible_BTS = jnp.concatenate([visible_BTS, seen_BTS], axis=-1)
    scores_BNTS = kernels.dot_products(q_BTNH, k_BSKH) * scale
    if softcap:
        scores_BNTS = softcap * jnp.tanh(scores_BNTS / softcap)
    weights_BNTS = kernels.softmax(scores_BNTS + bias_BNTS, visible_BTS)
    return kernels.pool(weights_BNTS, v_BSKH)


def drop(weights: jax.Array, dropout: WeightDropout, number: jax.Array | int) -> jax.Array:
    """Drops weights, differently for each number."""
    key = jax.random.fold_in(dropout.key, number)
    keep = jax.random.bernoulli(key, 1 - dropout.rate, weights.shape)
    return weights * keep.astype(jnp.float32) / (1 - dropout.rate)


def _neighbors(x: jax.Array) -> jax.Array:
    """Joins each block but the first and last of x [B, Q, T, ...] with those on its sides."""
    return jnp.concatenate([x[:, :-2], x[:, 1:-1], x[:, 2:]], axis=2)


def _merge(x: jax.Array) -> jax.Array:
    """Turns blocks [B, Q, T, ...] into rows of a larger batch."""
    return x.reshape(-1, *x.shape[2:])


def _by_block(x_BNTS: jax.Array, block: int) -> jax.Array:
    """Turns scores [B, N, Q * block, S] into those of a batch of blocks."""
    batch, heads, _, columns = x_BNTS.shape
    x_BNQTS = x_BNTS.reshape(batch, heads, -1, block, columns)
    return jnp.swapaxes(x_BNQTS, 1, 2).reshape(-1, heads, block, columns)


def _by_row(x_XNTS: jax.Array, batch: int) -> jax.Array:
    """Inverts `_by_block`."""
    _, heads, block, columns = x_XNTS.shape
    x_BQNTS = x_XNTS.reshape(batch, -1, heads, block, columns)
    return jnp.swapaxes(x_BQNTS, 1, 2).reshape(batch, heads, -1, columns)
