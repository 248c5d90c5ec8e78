"""Logits processors: pure functions that decide which token may come next, and how likely it is.

Logits are float32 [B, V]. The logit of an excluded token is minus infinity. Rows are independent of
each other, and nothing here depends on a model.
"""

import jax
import jax.numpy as jnp

BLOCK_COLUMNS = 256  # long rows are summed and compared in two passes, the first one over blocks


def temperature(logits_BV: jax.Array, value: jax.Array | float) -> jax.Array:
    """Divides logits by the temperature; values below one sharpen the distribution.

    Args:
      logits_BV: float32.
      value: the temperature, above zero.
    """
    return logits_BV / value


def top_k(logits_BV: jax.Array, k: jax.Array | int) -> jax.Array:
    """Keeps the k highest logits, and any equal to the k-th.

    Args:
      logits_BV: float32.
      k: the number of tokens to keep, at least one.

    Reference: Fan et al. 2018, section 5.4 (arXiv:1805.04833).
    """
    return _from_the_top(logits_BV, jnp.ones_like(logits_BV), k)


def top_p(logits_BV: jax.Array, p: jax.Array | float) -> jax.Array:
    """Keeps the nucleus: the fewest most probable tokens with total probability p or more.

    Tokens that are as probable as the least probable of these are kept too.

    Args:
      logits_BV: float32.
      p: the total probability, above zero and at most one.

    Reference: Holtzman et al. 2020, section 3.1 (arXiv:1904.09751).
    """
    return _from_the_top(logits_BV, jax.nn.softmax(logits_BV, axis=-1), p)


def min_p(logits_BV: jax.Array, p: jax.Array | float) -> jax.Array:
    """Keeps the tokens whose probability is at least p times the largest one.

    Args:
      logits_BV: float32.
      p: the fraction, above zero and at most one.

    Reference: Nguyen et al. 2024, section 3 (arXiv:2407.01082).
    """
    highest_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
    return jnp.where(logits_BV >= highest_B1 + jnp.log(p), logits_BV, -jnp.inf)


def repetition_penalty(
    logits_BV: jax.Array,
    tokens_BT: jax.Array,
    start_B: jax.Array,
    length: jax.Array | int,
    penalty: jax.Array | float,
) -> jax.Array:
    """Makes tokens that were already generated less probable.

    Positive logits are divided by the penalty, negative ones multiplied.

    Args:
      logits_BV: float32.
      tokens_BT: int32; columns start .. length - 1 of a row have been written.
      start_B: first column of each row that counts.
      length: columns written, of all rows or of each, [B].
      penalty: above one.

    Reference: Keskar et al. 2019, section 4.1 (arXiv:1909.05858).
    """
    index_1T = jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)[None]
    written_BT = (index_1T >= start_B[:, None]) & (index_1T < jnp.reshape(length, (-1, 1)))
    seen_BV = _marked(logits_BV.shape, tokens_BT, written_BT)
    penalised_BV = jnp.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return jnp.where(seen_BV, penalised_BV, logits_BV)


def no_repeat_ngram(
    logits_BV: jax.Array, tokens_BT: jax.Array, start_B: jax.Array, length: jax.Array | int, n: int
) -> jax.Array:
    """Excludes every token that would repeat an n-gram of the row.

    Args:
      logits_BV: float32.
      tokens_BT: int32; columns start .. length - 1 of a row have been written.
      start_B: first column of each row that counts.
      length: columns written, of all rows or of each, [B].
      n: at least one.

    Reference: Paulus et al. 2018, section 2.5 (arXiv:1705.04304).
    """
    windows = tokens_BT.shape[1] - n + 1
    if windows < 1:
        return logits_BV
    first_1W = jnp.arange(windows, dtype=jnp.int32)[None]
    length = jnp.reshape(length, (-1, 1))
    repeats_BW = (first_1W >= start_B[:, None]) & (first_1W + n - 1 < length)
    # A row shorter than n has no n-gram to repeat, and `repeats` is false for it.
    tail = jnp.maximum(length - n + 1, 0)
    for j in range(n - 1):
        last_B1 = jnp.take_along_axis(tokens_BT, tail + j, axis=1)
        repeats_BW &= tokens_BT[:, j : j + windows] == last_B1
    return jnp.where(
        _marked(logits_BV.shape, tokens_BT[:, n - 1 :], repeats_BW), -jnp.inf, logits_BV
    )


def suppress(logits_BV: jax.Array, token_ids_U: jax.Array) -> jax.Array:
    """Excludes the given tokens.

    Args:
      logits_BV: float32.
      token_ids_U: int32; ids outside the vocabulary are ignored.
    """
    return logits_BV.at[:, token_ids_U].set(-jnp.inf, mode="drop")


def force(logits_BV: jax.Array, token_id: jax.Array | int) -> jax.Array:
    """Excludes every token but one, and sets its logit to zero.

    Args:
      logits_BV: float32.
      token_id: int32 scalar.
    """
    is_it_V = jnp.arange(logits_BV.shape[-1], dtype=jnp.int32) == token_id
    return jnp.broadcast_to(
        jnp.where(is_it_V, 0.0, -jnp.inf)[None].astype(logits_BV.dtype), logits_BV.shape
    )


def likeliest(logits_BV: jax.Array) -> jax.Array:
    """Returns the token with the highest logit, int32 [B]; of ties, the first.

    It is jnp.argmax, but ten times faster on a CPU.
    """
    highest_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
    index_1V = jnp.arange(logits_BV.shape[-1], dtype=jnp.int32)[None]
    # V - 1 and not V: a row of NaN equals its maximum nowhere, and must still give a token.
    return jnp.min(jnp.where(logits_BV == highest_B1, index_1V, logits_BV.shape[-1] - 1), axis=-1)


def draw(logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
    """Draws one token per row from the softmax of its logits.

    One uniform number per row, a multiple of 2^-23, selects a block of tokens by the cumulative
    probabilities of blocks, and then the token within it. A token of probability zero is never
    drawn.

    Args:
      logits_BV: float32.
      keys_B: a PRNG key per row, so that the token of a row does not depend on other rows.

    Returns:
      int32 [B].
    """
    weights_BV = jnp.exp(logits_BV - jnp.max(logits_BV, axis=-1, keepdims=True))
    blocks_BMW = _blocks(weights_BV, 0.0)
    total_BM = jnp.cumsum(blocks_BMW.sum(axis=-1), axis=-1)
    at_B1 = jax.vmap(jax.random.uniform)(keys_B)[:, None] * total_BM[:, -1:]
    block_B1 = _first_above(total_BM, at_B1)
    before_B1 = jnp.take_along_axis(total_BM, jnp.maximum(block_B1 - 1, 0), axis=1)
    before_B1 = before_B1 * (block_B1 > 0).astype(jnp.float32)
    block_BW = jnp.take_along_axis(blocks_BMW, block_B1[:, :, None], axis=1)[:, 0]
    within_BW = jnp.cumsum(block_BW, axis=-1)
    return (block_B1 * BLOCK_COLUMNS + _first_above(within_BW, at_B1 - before_B1))[:, 0]


def largest(x_BT: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Returns the n largest entries of each row, and their indices, in descending order.

    It is jax.lax.top_k for long rows: the n largest entries lie in the n blocks with the largest
    maxima, so only those blocks are sorted.

    Args:
      x_BT: any ordered dtype.
      n: the number of entries, at most T.

    Returns:
      Values [B, n] in the dtype of x, and indices int32 [B, n].
    """
    blocks_BMW = _blocks(x_BT, -jnp.inf)
    _, block_Bn = jax.lax.top_k(blocks_BMW.max(axis=-1), min(n, blocks_BMW.shape[1]))
    block_Bn = jnp.sort(block_Bn, axis=-1)  # equal entries keep their order in the row
    chosen_BnW = jnp.take_along_axis(blocks_BMW, block_Bn[:, :, None], axis=1)
    values, place = jax.lax.top_k(chosen_BnW.reshape(len(x_BT), -1), n)
    return values, jnp.take_along_axis(
        block_Bn, place // BLOCK_COLUMNS, axis=1
    ) * BLOCK_COLUMNS + place % BLOCK_COLUMNS


def _from_the_top(
    logits_BV: jax.Array, weights_BV: jax.Array, limit: jax.Array | float
) -> jax.Array:
    """Keeps the highest logits until their weights sum to the limit.

    The lowest logit to keep is the least threshold above which the weights sum to less than the
    limit. Bisection over the 32 bits of a float finds it exactly, and on a CPU a hundred times as
    fast as a sort.
    """
    if logits_BV.ndim != 2:
        raise ValueError(f"logits have shape {logits_BV.shape}: must be [batch, vocabulary].")
    least_B = jnp.full(len(logits_BV), _ordinal(jnp.float32(-jnp.inf)))

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low_B, high_B = bounds
        # the mean, rounded down, without overflow
        middle_B = (low_B >> 1) + (high_B >> 1) + (low_B & high_B & 1)
        above_B = jnp.where(logits_BV >= _float(middle_B + 1)[:, None], weights_BV, 0).sum(axis=-1)
        low_B = jnp.where(above_B < limit, low_B, middle_B)
        return low_B, jnp.where(above_B < limit, middle_B, high_B)

    # The first bound is excluded and the second is not, so the search begins one below the least.
    _, last_B = jax.lax.fori_loop(0, 32, halve, (least_B - 1, _ordinal(logits_BV.max(axis=-1))))
    last_B = jnp.maximum(last_B, least_B)  # a limit above the total weight keeps everything
    return jnp.where(logits_BV >= _float(last_B)[:, None], logits_BV, -jnp.inf)


def _ordinal(x: jax.Array) -> jax.Array:
    """Maps float32 numbers to int32, preserving their order."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _float(ordinal: jax.Array) -> jax.Array:
    bits = jnp.where(ordinal < 0, ordinal ^ 0x7FFFFFFF, ordinal)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _blocks(x_BT: jax.Array, fill: float) -> jax.Array:
    """Splits rows into M blocks of W = BLOCK_COLUMNS entries, [B, M, W], padding the last."""
    pad = -x_BT.shape[1] % BLOCK_COLUMNS
    return jnp.pad(x_BT, ((0, 0), (0, pad)), constant_values=fill).reshape(
        len(x_BT), -1, BLOCK_COLUMNS
    )


def _first_above(cumulative_BT: jax.Array, at_B1: jax.Array) -> jax.Array:
    """Returns the first entry above `at`, int32 [B, 1].

    Despite rounding, it is never past the last entry with weight.
    """
    at_B1 = jnp.minimum(at_B1, jnp.nextafter(cumulative_BT[:, -1:], jnp.float32(0)))
    return (cumulative_BT <= at_B1).sum(axis=-1, keepdims=True, dtype=jnp.int32)


def _marked(shape: tuple[int, ...], tokens_BT: jax.Array, where_BT: jax.Array) -> jax.Array:
    """Marks tokens, bool [B, V]: True for those in the columns selected by `where_BT`."""
    B, V = shape
    # Columns that are not selected get the id V, which the scatter drops.
    rows_B1 = jnp.arange(B, dtype=jnp.int32)[:, None]
    return (
        jnp.zeros(shape, bool).at[rows_B1, jnp.where(where_BT, tokens_BT, V)].set(True, mode="drop")
    )
