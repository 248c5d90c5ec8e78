"""Recurrent cells as pure steps, `state, gates -> state`, and their scan over time.

`gates` are the input's share of a cell's pre-activations, `W x + b` for all tokens at once; a step
adds the state's share, `h U`. A state is a tuple of arrays whose first is the cell's output. The
same weights give what torch and flax compute:

| here | torch, rows of `weight_ih`, `weight_hh` | flax, submodules of the cell |
|---|---|---|
| rnn: `h` | one block | SimpleCell `i`, `h` |
| lstm: `i f g o` | blocks in this order | LSTMCell, OptimizedLSTMCell `i`+gate, `h`+gate |
| gru: `r z n` | blocks in this order | GRUCell `i`+gate, `h`+gate |

Both keep two biases where their sum is all that counts; here there is one for each gate, and in the
GRU a second for the candidate, which the reset gate multiplies: torch's `bias_hh` of block n, the
bias of flax's `hn`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.mixers.recurrent import RecurrentState
from flaxformer_lite.types import Tree


def rnn_step(state: RecurrentState, gates_BZU: jax.Array, kernel_UZU: jax.Array) -> RecurrentState:
    """Computes `h = tanh(x + h U)`.

    Args:
      state: `(h,)`, [B, U].
      gates_BZU: `W x + b`; Z is 1.
      kernel_UZU: U.

    Reference: Elman 1990, "Finding Structure in Time".
    """
    (h_BU,) = state
    return (jnp.tanh(gates_BZU + recurrent(h_BU, kernel_UZU))[:, 0],)


def lstm_step(state: RecurrentState, gates_BZU: jax.Array, kernel_UZU: jax.Array) -> RecurrentState:
    """Computes `c = f c + i g`, `h = o tanh(c)`, with sigmoid gates i, f, o and g = tanh.

    Args:
      state: `(h, c)`, each [B, U].
      gates_BZU: `W x + b` of i, f, g, o.
      kernel_UZU: U of the four.

    Reference: Hochreiter and Schmidhuber 1997, "Long Short-Term Memory"; forget gates, Gers et al.
    2000.
    """
    h_BU, c_BU = state
    i, f, g, o = jnp.unstack(gates_BZU + recurrent(h_BU, kernel_UZU), axis=1)
    c_BU = jax.nn.sigmoid(f) * c_BU + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c_BU), c_BU


def gru_step(
    state: RecurrentState, gates_BZU: jax.Array, kernel_UZU: jax.Array, bias_U: jax.Array
) -> RecurrentState:
    """Computes `n = tanh(x_n + r (h U_n + b))`, `h = (1 - z) n + z h`, with sigmoid gates r and z.

    The reset gate r multiplies the product `h U_n`, as in cuDNN, torch and flax; in the paper it
    multiplies h before the product. Published weights of the one are no weights of the other.

    Args:
      state: `(h,)`, [B, U].
      gates_BZU: `W x + b` of r, z, n.
      kernel_UZU: U of the three.
      bias_U: b.

    Reference: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder"
    (arXiv:1406.1078).
    """
    (h_BU,) = state
    r_BU, z_BU, n_BU = jnp.unstack(recurrent(h_BU, kernel_UZU), axis=1)
    r = jax.nn.sigmoid(gates_BZU[:, 0] + r_BU)
    z = jax.nn.sigmoid(gates_BZU[:, 1] + z_BU)
    n = jnp.tanh(gates_BZU[:, 2] + r * (n_BU + bias_U[None]))
    return ((1 - z) * n + z * h_BU,)


def recurrent(h_BU: jax.Array, kernel_UZU: jax.Array) -> jax.Array:
    """Computes `h U` of all gates as one matrix product.

    Args:
      h_BU: the hidden state.
      kernel_UZU: the recurrent matrix of each of the Z gates.

    Returns:
      [B, Z, U].
    """
    units, *out = kernel_UZU.shape
    return (h_BU @ kernel_UZU.reshape(units, -1)).reshape(-1, *out)


def first(state: RecurrentState) -> jax.Array:
    return state[0]


def scan_cell(
    step: Callable[[RecurrentState, Tree], RecurrentState],
    state: RecurrentState,
    tokens: Tree,
    /,
    starts_BT: jax.Array | None = None,
    keep_BT: jax.Array | None = None,
    *,
    reverse: bool = False,
    output: Callable[[RecurrentState], Any] = first,
) -> tuple[Any, RecurrentState]:
    """Runs a cell over time.

        >>> total = lambda state, x: (state[0] + x,)
        >>> starts = jnp.array([[0, 0, 1, 0]], bool)
        >>> y, _ = scan_cell(total, (jnp.zeros(1),), jnp.ones((1, 4)), starts)
        >>> y.tolist()
        [[1.0, 2.0, 1.0, 2.0]]

    Args:
      step: a step function with its weights bound.
      state: the state before the first token; zeros, unless an earlier call left one.
      tokens: arrays [B, T, ...], of which step gets [B, ...]; usually the gates.
      starts_BT: bool, True where a document starts: the state is zero before it. None: one
        document.
      keep_BT: bool, False for padding, which leaves the state as it is; its output is that of the
        token before.
      reverse: whether to read from right to left; documents still start at `starts_BT`.
      output: what to return of each state.

    Returns:
      The outputs [B, T, ...], and the last state.
    """

    def read(state: RecurrentState, token: tuple) -> tuple[RecurrentState, Any]:
        x, starts_B, keep_B = token
        if starts_B is not None:
            state = tuple(jnp.where(_like(starts_B, s), jnp.zeros_like(s), s) for s in state)
        new = step(state, x)
        if keep_B is not None:
            pairs = zip(new, state, strict=True)
            new = tuple(jnp.where(_like(keep_B, s), s, old) for s, old in pairs)
        return new, output(new)

    if starts_BT is not None and reverse:  # a document's last token is the first to be read
        starts_BT = jnp.concatenate([starts_BT[:, 1:], jnp.ones_like(starts_BT[:, :1])], axis=1)
    times = jax.tree.map(lambda x: _time_first(x, reverse), (tokens, starts_BT, keep_BT))
    state, outputs = jax.lax.scan(read, state, times)
    if reverse:
        outputs = jax.tree.map(lambda x: jnp.flip(x, axis=0), outputs)
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), outputs), state


def _time_first(x: jax.Array, reverse: bool) -> jax.Array:
    """Returns x [T, B, ...] in the order of reading; some compilers scan forward only."""
    x = jnp.swapaxes(x, 0, 1)
    if reverse:
        x = jnp.flip(x, axis=0)
    return x


def _like(mask_B: jax.Array, x: jax.Array) -> jax.Array:
    return mask_B.reshape(-1, *(1,) * (x.ndim - 1))
