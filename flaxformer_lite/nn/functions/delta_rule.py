"""The gated delta rule: a state that forgets, and writes what it does not predict yet.

    S_t = a_t S_{t-1} + k_t d_t^T    with d_t = b_t (v_t - a_t S_{t-1}^T k_t)
    o_t = S_t^T q_t

Computed in chunks: within one, the writes d of all tokens solve a triangular system, so that what
is left for the loop over chunks are matrix products.

Reference: Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks" (arXiv:2412.06464), section 3; Yang
et al. 2024 (arXiv:2406.06484), section 3, for the chunks.
"""

import jax
import jax.numpy as jnp
from jax import export

from flaxformer_lite.nn.functions.recurrent import RecurrentState, scan_cell

CHUNK = 64


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
    chunk: int = CHUNK,
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
      chunk: tokens in a chunk; changes no number.

    Returns:
      o, float32 [B, T, N, F], and S after the last token, float32.
    """
    batch, length, heads, _ = q_BTNH.shape
    if export.is_symbolic_dim(length):
        return _by_token(q_BTNH, k_BTNH, v_BTNF, log_decay_BTN, rate_BTN, state_BNHF, starts_BT)
    chunk = min(chunk, length)
    behind = -length % chunk

    def split(x: jax.Array) -> jax.Array:
        """Returns chunks of x [B, T, N, ...], heads first: [chunks, B, N, chunk, ...]."""
        x = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, behind), *((0, 0),) * (x.ndim - 2)))
        x = x.reshape(batch, -1, chunk, *x.shape[2:])
        return jnp.moveaxis(jnp.swapaxes(x, 0, 1), 3, 2)

    if starts_BT is None:
        starts_BT = jnp.zeros((batch, length), bool)
    document_BT = jnp.cumsum(starts_BT, axis=1, dtype=jnp.int32)
    document_BT = jnp.pad(document_BT, ((0, 0), (0, behind)), mode="edge")
    document_YBT = jnp.swapaxes(document_BT.reshape(batch, -1, chunk), 0, 1)
    zeros_1B = jnp.zeros((1, batch), jnp.int32)
    before_YB = jnp.concatenate([zeros_1B, document_YBT[:-1, :, -1]])  # of the state's document
    q, k, v, rate = map(split, (q_BTNH, k_BTNH, v_BTNF, rate_BTN))
    total = jnp.cumsum(split(log_decay_BTN), axis=-1)  # of logs, from the chunk's first token on
    same_YB1TS = (document_YBT[..., :, None] == document_YBT[..., None, :])[:, :, None]
    earlier_TS = jnp.tril(jnp.ones((chunk, chunk), bool))
    decays = _exp(
        total[..., :, None] - total[..., None, :], same_YB1TS & earlier_TS[None, None, None]
    )
    reads_state_YB1T = (document_YBT == before_YB[..., None])[:, :, None]
    of_state = _exp(total, reads_state_YB1T)
    is_last_YB1T = (document_YBT == document_YBT[..., -1:])[:, :, None]
    to_end = _exp(total[..., -1:] - total, is_last_YB1T)
    system = jnp.einsum("ybnth,ybnsh->ybnts", k, k) * decays * rate[..., None]
    written = jnp.concatenate([v, k * of_state[..., None]], axis=-1) * rate[..., None]
    solved = jax.scipy.linalg.solve_triangular(system, written, lower=True, unit_diagonal=True)
    width = v.shape[-1]
    attention = jnp.einsum("ybnth,ybnsh->ybnts", q, k) * decays

    def read(state_BNHF: jax.Array, given: tuple) -> tuple[jax.Array, jax.Array]:
        new, known, q, k, attention, keeps = given
        new = new - known @ state_BNHF
        out = q @ state_BNHF + attention @ new
        state_BNHF = state_BNHF * keeps[..., None, None] + jnp.swapaxes(k, -1, -2) @ new
        return state_BNHF, out

    given = (
        solved[..., :width],
        solved[..., width:],
        q * of_state[..., None],
        k * to_end[..., None],
        attention,
        of_state[..., -1],
    )
    state_BNHF, out = jax.lax.scan(read, state_BNHF.astype(jnp.float32), given)
    out_BTNF = jnp.swapaxes(jnp.moveaxis(out, 2, 3), 0, 1).reshape(batch, -1, heads, width)
    return out_BTNF[:, :length], state_BNHF


def _by_token(
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNF: jax.Array,
    log_decay_BTN: jax.Array,
    rate_BTN: jax.Array,
    state_BNHF: jax.Array,
    starts_BT: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Computes what `gated_delta_rule` does token by token, for files of calls of any length."""

    def step(state: RecurrentState, token: tuple) -> RecurrentState:
        k_BNH, v_BNF, log_decay_BN, rate_BN, q_BNH = token
        state_BNHF = state[1] * jnp.exp(log_decay_BN)[..., None, None]
        predicted_BNF = jnp.einsum("bnhf,bnh->bnf", state_BNHF, k_BNH)
        written_BNF = (v_BNF - predicted_BNF) * rate_BN[..., None]
        state_BNHF += k_BNH[..., None] * written_BNF[..., None, :]
        return jnp.einsum("bnhf,bnh->bnf", state_BNHF, q_BNH), state_BNHF

    tokens = (k_BTNH, v_BTNF, log_decay_BTN, rate_BTN, q_BTNH)
    tokens = jax.tree.map(lambda x: x.astype(jnp.float32), tokens)
    batch, _, heads, width = v_BTNF.shape
    nothing_BNF = jnp.zeros((batch, heads, width), jnp.float32)
    state = nothing_BNF, state_BNHF.astype(jnp.float32)
    out_BTNF, (_, state_BNHF) = scan_cell(step, state, tokens, starts_BT)
    return out_BTNF, state_BNHF


def _exp(log: jax.Array, kept: jax.Array) -> jax.Array:
    """Computes exp(log), 0 where not kept; logs there may be large."""
    return jnp.where(kept, jnp.exp(jnp.where(kept, log, 0.0)), 0.0)


def causal_convolution(
    x_BTD: jax.Array,
    weight_DW: jax.Array,
    before_BSD: jax.Array,
    /,
    starts_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Sums each channel over W tokens with its weights, the last one the token itself.

    Args:
      x_BTD: the input.
      weight_DW: the weights of each channel.
      before_BSD: the W - 1 tokens before; zeros where there are none.
      starts_BT: bool, True where a document starts, which sees none before it.

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
