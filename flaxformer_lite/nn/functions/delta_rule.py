"""The gated delta rule: a linear recurrence that stores the error of its own prediction.

    S_t = a_t S_{t-1} + k_t d_t^T    with d_t = b_t (v_t - a_t S_{t-1}^T k_t)
    o_t = S_t^T q_t

It is computed in chunks. The writes d of all tokens in a chunk are the solution of a triangular
system, so that the loop over chunks consists of matrix products only.

Reference: Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks" (arXiv:2412.06464), section 3; Yang
et al. 2024 (arXiv:2406.06484), section 3, for the chunks.
"""

import jax
import jax.numpy as jnp

# As transformers has it; the result does not depend on it.
CHUNK_TOKENS = 64


def gated_delta_rule(
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNF: jax.Array,
    log_decay_BTN: jax.Array,
    rate_BTN: jax.Array,
    state_BNHF: jax.Array,
    /,
    starts_BT: jax.Array | None = None,
    *,
    chunk: int = CHUNK_TOKENS,
) -> tuple[jax.Array, jax.Array]:
    """Runs the rule over the documents of a batch.

        >>> x = jnp.ones((1, 3, 1, 1))
        >>> y, _ = gated_delta_rule(x, x, x, x[..., 0] * 0, x[..., 0] / 2, jnp.zeros((1, 1, 1, 1)))
        >>> y[0, :, 0, 0].tolist()
        [0.5, 0.75, 0.875]

    Args:
      q_BTNH, k_BTNH: queries and keys, normalized and scaled.
      v_BTNF: values.
      log_decay_BTN: log a, not positive; 0 forgets nothing.
      rate_BTN: b, from 0 to 1; 0 writes nothing.
      state_BNHF: S before the first token.
      starts_BT: bool, True where a document starts: S is zero before it. None: one document.
      chunk: tokens in a chunk; the result does not depend on it, up to rounding.

    Returns:
      o, float32 [B, T, N, F], and S after the last token, float32.
    """
    batch, length, heads, width = v_BTNF.shape
    chunk = min(chunk, length)
    padding = -length % chunk

    def split(x: jax.Array) -> jax.Array:
        """Splits x [B, T, N, ...] into Y chunks with heads first, [Y, B, N, chunk, ...]."""
        x = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, padding), *((0, 0),) * (x.ndim - 2)))
        x = x.reshape(batch, -1, chunk, *x.shape[2:])
        return jnp.moveaxis(jnp.swapaxes(x, 0, 1), 3, 2)

    if starts_BT is None:
        starts_BT = jnp.zeros((batch, length), bool)
    document_BT = jnp.cumsum(starts_BT, axis=1, dtype=jnp.int32)
    document_BT = jnp.pad(document_BT, ((0, 0), (0, padding)), mode="edge")
    document_YBT = jnp.swapaxes(document_BT.reshape(batch, -1, chunk), 0, 1)
    zeros_1B = jnp.zeros((1, batch), jnp.int32)
    state_document_YB = jnp.concatenate([zeros_1B, document_YBT[:-1, :, -1]])
    q_YBNTH, k_YBNTH, v_YBNTF, rate_YBNT = map(split, (q_BTNH, k_BTNH, v_BTNF, rate_BTN))
    # log of the decay from the beginning of the chunk to each token, inclusive
    total_YBNT = jnp.cumsum(split(log_decay_BTN), axis=-1)
    same_YB1TS = (document_YBT[..., :, None] == document_YBT[..., None, :])[:, :, None]
    earlier_TS = jnp.tril(jnp.ones((chunk, chunk), bool))
    decay_YBNTS = _exp(
        total_YBNT[..., :, None] - total_YBNT[..., None, :],
        same_YB1TS & earlier_TS[None, None, None],
    )
    sees_state_YB1T = (document_YBT == state_document_YB[..., None])[:, :, None]
    decay_of_state_YBNT = _exp(total_YBNT, sees_state_YB1T)
    is_last_YB1T = (document_YBT == document_YBT[..., -1:])[:, :, None]
    decay_to_end_YBNT = _exp(total_YBNT[..., -1:] - total_YBNT, is_last_YB1T)
    # The writes of a chunk are d = new - known S, linear in the state S before the chunk. Both
    # terms are solutions of the same triangular system.
    system_YBNTS = jnp.einsum("ybnth,ybnsh->ybnts", k_YBNTH, k_YBNTH)
    system_YBNTS = system_YBNTS * decay_YBNTS * rate_YBNT[..., None]
    sides = jnp.concatenate([v_YBNTF, k_YBNTH * decay_of_state_YBNT[..., None]], axis=-1)
    # The matrix of the system is one plus what is below the diagonal, so its own diagonal is not
    # read.
    solved = jax.scipy.linalg.solve_triangular(
        system_YBNTS, sides * rate_YBNT[..., None], lower=True, unit_diagonal=True
    )
    attention_YBNTS = jnp.einsum("ybnth,ybnsh->ybnts", q_YBNTH, k_YBNTH) * decay_YBNTS

    def read(state_BNHF: jax.Array, item: tuple) -> tuple[jax.Array, jax.Array]:
        """Reads a chunk; returns the state behind it, and its outputs [B, N, chunk, F]."""
        new, known, q, k, attention, decay = item
        written = new - known @ state_BNHF
        out = q @ state_BNHF + attention @ written
        state_BNHF = state_BNHF * decay[..., None, None] + jnp.swapaxes(k, -1, -2) @ written
        return state_BNHF, out

    chunks = (
        solved[..., :width],
        solved[..., width:],
        q_YBNTH * decay_of_state_YBNT[..., None],
        k_YBNTH * decay_to_end_YBNT[..., None],
        attention_YBNTS,
        decay_of_state_YBNT[..., -1],
    )
    # The sum varies over the mesh as the texts do, even if the first state does not.
    state_BNHF = state_BNHF.astype(jnp.float32) + jnp.zeros_like(q_YBNTH, shape=())
    state_BNHF, out_YBNTF = jax.lax.scan(read, state_BNHF, chunks)
    out_YBTNF = jnp.moveaxis(out_YBNTF, 2, 3)
    out_BTNF = jnp.swapaxes(out_YBTNF, 0, 1).reshape(batch, -1, heads, width)
    return out_BTNF[:, :length], state_BNHF


def _exp(log: jax.Array, kept: jax.Array) -> jax.Array:
    """Computes exp(log) where kept, else 0; logs that are not kept may overflow."""
    # Twice, as the gradient of an overflowing exp would be NaN even where it is not kept.
    return jnp.where(kept, jnp.exp(jnp.where(kept, log, 0.0)), 0.0)


def causal_convolution(
    x_BTD: jax.Array,
    weight_DW: jax.Array,
    before_BSD: jax.Array,
    /,
    starts_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Computes a weighted sum of the last W tokens for each channel and token.

    Args:
      x_BTD: the input.
      weight_DW: the weights of each channel; the last one is for the token itself.
      before_BSD: the W - 1 tokens before the first one; zeros if there are none.
      starts_BT: bool, True where a document starts, which sees no token of the one before it.

    Returns:
      The sums [B, T, D], and the last W - 1 tokens.
    """
    length = x_BTD.shape[1]
    width = weight_DW.shape[1]
    joined_BSD = jnp.concatenate([before_BSD.astype(x_BTD.dtype), x_BTD], axis=1)
    sums_BTD = jnp.zeros_like(x_BTD)
    document_BS = None
    if starts_BT is not None:
        document_BT = jnp.cumsum(starts_BT, axis=1, dtype=jnp.int32)
        document_BS = jnp.pad(document_BT, ((0, 0), (width - 1, 0)))
    for tap in range(width):
        seen_BTD = joined_BSD[:, tap : tap + length]
        if document_BS is not None:
            same_BT = document_BS[:, tap : tap + length] == document_BS[:, width - 1 :]
            seen_BTD = jnp.where(same_BT[..., None], seen_BTD, 0)
        sums_BTD += seen_BTD * weight_DW[None, None, :, tap]
    return sums_BTD, joined_BSD[:, length:]
