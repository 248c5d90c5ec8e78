"""Logits processors: what may come next, and how likely; pure functions from logits to logits.

A token that is ruled out has logit minus infinity. Each row is treated alone; nothing here knows of models.
"""

import jax
import jax.numpy as jnp


def temperature(logits_BV: jax.Array, value: jax.Array | float) -> jax.Array:
    """Divides by the temperature: below one sharpens the distribution, above one flattens it."""
    return logits_BV / value


def top_k(logits_BV: jax.Array, k: int) -> jax.Array:
    """Keeps the k highest logits, and those equal to the k-th.

    Reference: Fan et al. 2018, section 5.4 (arXiv:1805.04833).
    """
    kth_B1 = jax.lax.top_k(logits_BV, min(k, logits_BV.shape[-1]))[0][:, -1:]
    return jnp.where(logits_BV >= kth_B1, logits_BV, -jnp.inf)


def top_p(logits_BV: jax.Array, p: jax.Array | float) -> jax.Array:
    """Keeps the nucleus: the fewest most likely tokens whose probabilities sum to more than p; the first always stays.

    Tokens as likely as the last of the nucleus stay too.

    Reference: Holtzman et al. 2020, section 3.1 (arXiv:1904.09751).
    """
    ascending_BV = jnp.sort(logits_BV, axis=-1)
    kept_BV = jnp.cumsum(jax.nn.softmax(ascending_BV, axis=-1), axis=-1) > 1 - p
    last_B1 = jnp.min(jnp.where(kept_BV, ascending_BV, ascending_BV[:, -1:]), axis=-1, keepdims=True)
    return jnp.where(logits_BV >= last_B1, logits_BV, -jnp.inf)


def min_p(logits_BV: jax.Array, p: jax.Array | float) -> jax.Array:
    """Keeps the tokens at least p times as likely as the likeliest.

    Reference: Nguyen et al. 2024, section 3 (arXiv:2407.01082).
    """
    highest_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
    return jnp.where(logits_BV >= highest_B1 + jnp.log(p), logits_BV, -jnp.inf)


def repetition_penalty(
    logits_BV: jax.Array, tokens_BT: jax.Array, start_B: jax.Array, length: jax.Array | int, penalty: jax.Array | float
) -> jax.Array:
    """Makes tokens that have been written less likely: positive logits are divided by the penalty, negative multiplied.

    Args:
      logits_BV: float32.
      tokens_BT: int32; columns start .. length - 1 of a row have been written.
      start_B: first column of each row that counts.
      length: columns written.
      penalty: above one.

    Reference: Keskar et al. 2019, section 4.1 (arXiv:1909.05858).
    """
    index_1T = jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)[None]
    written_BT = (index_1T >= start_B[:, None]) & (index_1T < length)
    seen_BV = _marked(logits_BV.shape, tokens_BT, written_BT)
    penalised_BV = jnp.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return jnp.where(seen_BV, penalised_BV, logits_BV)


def no_repeat_ngram(
    logits_BV: jax.Array, tokens_BT: jax.Array, start_B: jax.Array, length: jax.Array | int, n: int
) -> jax.Array:
    """Rules out every token that would write an n-gram of the row a second time.

    Args:
      logits_BV: float32.
      tokens_BT: int32; columns start .. length - 1 of a row have been written.
      start_B: first column of each row that counts.
      length: columns written.
      n: at least one.

    Reference: Paulus et al. 2018, section 2.5 (arXiv:1705.04304).
    """
    windows = tokens_BT.shape[1] - n + 1
    if windows < 1:
        return logits_BV
    first_1W = jnp.arange(windows, dtype=jnp.int32)[None]
    repeats_BW = (first_1W >= start_B[:, None]) & (first_1W + n - 1 < length)
    tail_BJ = jax.lax.dynamic_slice_in_dim(tokens_BT, jnp.maximum(length - n + 1, 0), max(n - 1, 1), axis=1)
    for j in range(n - 1):
        repeats_BW &= tokens_BT[:, j : j + windows] == tail_BJ[:, j : j + 1]
    return jnp.where(_marked(logits_BV.shape, tokens_BT[:, n - 1 :], repeats_BW), -jnp.inf, logits_BV)


def suppress(logits_BV: jax.Array, token_ids_U: jax.Array) -> jax.Array:
    """Rules out the given tokens; ids outside the vocabulary are ignored."""
    return logits_BV.at[:, token_ids_U].set(-jnp.inf, mode="drop")


def force(logits_BV: jax.Array, token_id: jax.Array | int) -> jax.Array:
    """Rules out every token but one, whose logit is zero."""
    is_it_V = jnp.arange(logits_BV.shape[-1], dtype=jnp.int32) == token_id
    return jnp.broadcast_to(jnp.where(is_it_V, 0.0, -jnp.inf)[None].astype(logits_BV.dtype), logits_BV.shape)


def draw(logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
    """A token of each row, int32 [B], with its softmax probability; each row has a key of its own, so that no row's
    token depends on the others."""
    return jax.vmap(jax.random.categorical)(keys_B, logits_BV).astype(jnp.int32)


def _marked(shape: tuple[int, int], tokens_BT: jax.Array, where_BT: jax.Array) -> jax.Array:
    """bool [B, V], True at the tokens of the columns where `where_BT`."""
    B, V = shape
    rows_B1 = jnp.arange(B, dtype=jnp.int32)[:, None]
    return jnp.zeros(shape, bool).at[rows_B1, jnp.where(where_BT, tokens_BT, V)].set(True, mode="drop")
