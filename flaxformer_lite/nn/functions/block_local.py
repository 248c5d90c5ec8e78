"""Attention of blocks of tokens to their neighbors, and to a few keys that all of them read.

A block sees the block before it, itself and the block after it, so time and memory grow with the
length and not with its square. Long rows are computed in parts of a few blocks, and again in the
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

NO_PART = 0xFFFFFFFF  # the number, for `drop`, of weights that belong to no part
MOST_SCORES = 2**24  # scores of one example in memory at a time, 64 MiB in float32


class Shared(NamedTuple):
    """Keys and values that every block reads, besides its neighbors.

    Attributes:
      k_BSKH, v_BSKH: the keys and values.
      rows: a tree of arrays [B, T, ...], what `logits` needs to know of each row.
      logits: function of `rows`, or of a slice of it along T; returns a bias, [B or 1, N or 1,
        T or 1, S], and bool [B, T, S], True = may attend.
    """

    k_BSKH: jax.Array
    v_BSKH: jax.Array
    rows: Any
    logits: Callable[[Any], tuple[jax.Array, jax.Array]]


class _Part(NamedTuple):
    """The inputs of Q blocks of T tokens that are computed at the same time.

    Keys, values and their ids have Q + 2 blocks, one more on each side.
    """

    q_BQTNH: jax.Array
    k_BQTKH: jax.Array
    v_BQTKH: jax.Array
    q_ids_BQT: jax.Array
    k_ids_BQT: jax.Array
    rows: Any  # `Shared.rows` of these blocks
    number: jax.Array  # int32 scalar, from 0


class _Layout(NamedTuple):
    """The cut of a sequence into parts; the last one may reach beyond its end.

    Attributes:
      length: tokens in the sequence.
      block: tokens in a block.
      blocks_per_part: Q.
      parts: the number of parts.
    """

    length: int
    block: int
    blocks_per_part: int
    parts: int


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
    block_bias: jax.Array | None = None,
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
      block_bias: added to the logits of a block, [N, block, 3 * block].
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
    layout = _layout(length, block, scores_per_block=block * heads * columns)
    if radius is None:
        radius = 3 * block
    distance_TS = np.arange(3 * block)[None] - block - np.arange(block)[:, None]
    near_1TS = np.abs(distance_TS)[None] <= radius

    def scores(q_BTNH: jax.Array, k_BSKH: jax.Array) -> jax.Array:
        scores_BNTS = kernels.dot_products(q_BTNH, k_BSKH) * scale
        if softcap:
            scores_BNTS = softcap * jnp.tanh(scores_BNTS / softcap)
        return scores_BNTS

    def neighbor_logits(part: _Part) -> tuple[jax.Array, jax.Array]:
        """Computes logits of the near columns, [X, N, block, 3 * block], and their visibility."""
        scores_XNTS = scores(_merge(part.q_BQTNH), _merge(_neighbors(part.k_BQTKH)))
        if block_bias is not None:
            scores_XNTS += block_bias.astype(jnp.float32)[None]
        q_ids_XT1 = _merge(part.q_ids_BQT)[:, :, None]
        same_XTS = q_ids_XT1 == _merge(_neighbors(part.k_ids_BQT))[:, None, :]
        return scores_XNTS, same_XTS & (q_ids_XT1 != 0) & near_1TS

    def shared_logits(part: _Part, shared: Shared) -> tuple[jax.Array, jax.Array]:
        """Computes the logits of the shared columns, [B, N, Q * block, S], and their visibility."""
        q_BTNH = part.q_BQTNH.reshape(batch, -1, *part.q_BQTNH.shape[3:])
        scores_BNTS = scores(q_BTNH, shared.k_BSKH)
        rows = jax.tree.map(lambda x: x.reshape(batch, -1, *x.shape[3:]), part.rows)
        bias_BNTS, visible_BTS = shared.logits(rows)
        return scores_BNTS + bias_BNTS.astype(jnp.float32), visible_BTS

    def attend(part: _Part) -> jax.Array:
        """Computes the rows of one part, [B, Q * block, N, H]."""
        scores_XNTS, visible_XTS = neighbor_logits(part)
        if shared is not None:
            scores_BNTS, visible_BTS = shared_logits(part, shared)
            scores_XNTS = jnp.concatenate([scores_XNTS, _by_block(scores_BNTS, block)], axis=-1)
            shared_XTS = visible_BTS.reshape(-1, block, visible_BTS.shape[-1])
            visible_XTS = jnp.concatenate([visible_XTS, shared_XTS], axis=-1)
        weights_XNTS = kernels.softmax(scores_XNTS, visible_XTS)
        if dropout is not None:
            weights_XNTS = drop(weights_XNTS, dropout, part.number)
        local_XNTS = weights_XNTS[..., : 3 * block]
        out_XTNH = kernels.pool(local_XNTS, _merge(_neighbors(part.v_BQTKH)))
        out_BTNH = out_XTNH.reshape(batch, -1, *out_XTNH.shape[2:])
        if shared is not None:
            shared_BNTS = _by_row(weights_XNTS[..., 3 * block :], batch)
            out_BTNH += kernels.pool(shared_BNTS, shared.v_BSKH)
        return out_BTNH

    rows = None
    if shared is not None:
        rows = shared.rows
    parts = _Part(
        _split(q_BTNH, layout, halo=0),
        _split(k_BTKH, layout, halo=1),
        _split(v_BTKH, layout, halo=1),
        _split(q_ids_BT, layout, halo=0),
        _split(k_ids_BT, layout, halo=1),
        jax.tree.map(lambda x: _split(x, layout, halo=0), rows),
        jnp.arange(layout.parts),
    )
    if layout.parts == 1:
        return attend(jax.tree.map(lambda x: x[0], parts))[:, :length]
    out = jax.lax.map(jax.checkpoint(attend), parts)
    return jnp.swapaxes(out, 0, 1).reshape(batch, -1, *out.shape[3:])[:, :length]


def _layout(length: int, block: int, *, scores_per_block: int) -> _Layout:
    """Chooses the fewest parts with about MOST_SCORES scores at most, of equal size."""
    blocks = -(-length // block)
    parts = min(-(-blocks * scores_per_block // MOST_SCORES), blocks)
    blocks_per_part = -(-blocks // parts)
    # Counted again: 5 blocks in 4 parts are 2 a part, which fill only 3.
    return _Layout(length, block, blocks_per_part, -(-blocks // blocks_per_part))


def _split(x: jax.Array, layout: _Layout, *, halo: int) -> jax.Array:
    """Splits x [B, T, ...] into parts with `halo` more blocks on each side.

    Returns:
      [parts, B, Q + 2 * halo, block, ...], zero outside of the sequence.
    """
    before = halo * layout.block
    padded = (layout.parts * layout.blocks_per_part + halo) * layout.block
    x = jnp.pad(x, ((0, 0), (before, padded - layout.length), *((0, 0),) * (x.ndim - 2)))
    x = x.reshape(x.shape[0], -1, layout.block, *x.shape[2:])
    if layout.parts == 1:
        return x[None]
    first = np.arange(layout.parts)[:, None] * layout.blocks_per_part
    index = first + np.arange(layout.blocks_per_part + 2 * halo)[None]
    return jnp.swapaxes(jnp.take(x, index, axis=1), 0, 1)


def drop(weights: jax.Array, dropout: WeightDropout, number: jax.Array | int) -> jax.Array:
    """Drops weights at random, independently for each part `number`."""
    key = jax.random.fold_in(dropout.key, number)
    keep = jax.random.bernoulli(key, 1 - dropout.rate, weights.shape)
    return weights * keep.astype(jnp.float32) / (1 - dropout.rate)


def _neighbors(x: jax.Array) -> jax.Array:
    """Joins each inner block with its two neighbors: [B, Q + 2, T, ...] to [B, Q, 3 T, ...]."""
    return jnp.concatenate([x[:, :-2], x[:, 1:-1], x[:, 2:]], axis=2)


def _merge(x: jax.Array) -> jax.Array:
    """Merges the axes of batch and blocks: [B, Q, T, ...] to [X, T, ...], X = B * Q."""
    return x.reshape(-1, *x.shape[2:])


def _by_block(x_BNTS: jax.Array, block: int) -> jax.Array:
    """Reshapes scores [B, N, Q * block, S] to [X, N, block, S], X = B * Q."""
    batch, heads, _, columns = x_BNTS.shape
    x_BNQTS = x_BNTS.reshape(batch, heads, -1, block, columns)
    return jnp.swapaxes(x_BNQTS, 1, 2).reshape(-1, heads, block, columns)


def _by_row(x_XNTS: jax.Array, batch: int) -> jax.Array:
    """Inverts `_by_block`."""
    _, heads, block, columns = x_XNTS.shape
    x_BQNTS = x_XNTS.reshape(batch, -1, heads, block, columns)
    return jnp.swapaxes(x_BQNTS, 1, 2).reshape(batch, heads, -1, columns)
