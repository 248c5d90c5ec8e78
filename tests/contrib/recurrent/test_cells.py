"""Recurrent cells compute what torch computes from the same weights, and the scan resets, passes
over and reverses."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.contrib.recurrent.cells import gru_step, lstm_step, rnn_step, scan_cell

B = 3
T = 7
D = 5
U = 4
TORCH = np.load(Path(__file__).with_name("torch_recurrent.npz"))
# gates, arrays in a state
STEPS = {"rnn": (rnn_step, 1, 1), "lstm": (lstm_step, 4, 2), "gru": (gru_step, 3, 1)}


def layer(name, weights, x_BTD, *marks, **options):
    """Applies (input [D, Z, U], kernel [U, Z, U], bias [Z, U], bias of the candidate [U]) to x."""
    step, _, states = STEPS[name]
    inward, kernel, bias, candidate = weights
    more = (candidate,) if name == "gru" else ()
    gates = jnp.einsum("BTD,DZU->BTZU", x_BTD, inward) + bias[None, None]
    zeros = (jnp.zeros((x_BTD.shape[0], kernel.shape[0])),) * states
    cell = lambda state, gates: step(state, gates, kernel, *more)  # noqa: E731
    return scan_cell(cell, zeros, gates, *marks, **options)


def of_torch(name, suffix, prefix=""):
    """The weights of one direction, by the mapping that cells.py describes."""
    gates = STEPS[name][1]
    inward, kernel = (TORCH[f"{name}/{prefix}weight_{side}_l0{suffix}"] for side in ("ih", "hh"))
    inward, kernel = (x.reshape(gates, U, -1).transpose(2, 0, 1) for x in (inward, kernel))
    biases = (TORCH[f"{name}/{prefix}bias_{side}_l0{suffix}"] for side in ("ih", "hh"))
    b_input, b_state = (bias.reshape(gates, U) for bias in biases)
    bias = b_input + (b_state * [[1], [1], [0]] if name == "gru" else b_state)
    return inward, kernel, bias, b_state[-1]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("suffix", ["", "_reverse"])
def test_equals_torch_in_values_states_and_gradients_past_padding(name, suffix):
    keep = np.arange(T)[None] < TORCH["lengths"][:, None]
    half = slice(U, None) if suffix else slice(U)

    def loss(weights, x):
        y, state = layer(name, weights, x, None, jnp.asarray(keep), reverse=bool(suffix))
        return jnp.sum(jnp.where(keep[..., None], jnp.sin(y), 0)), (y, state)

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, (y, state)), (weights, _) = run(of_torch(name, suffix), jnp.asarray(TORCH["x"]))
    y = np.where(keep[..., None], y, 0)
    np.testing.assert_allclose(y, TORCH[f"{name}/y"][..., half], atol=1e-5)
    for i, last in enumerate(state):
        np.testing.assert_allclose(last, TORCH[f"{name}/state{i}"][int(bool(suffix))], atol=1e-5)
    wanted = of_torch(name, suffix, "grad/")
    gates = STEPS[name][1]
    wanted = (*wanted[:2], TORCH[f"{name}/grad/bias_ih_l0{suffix}"].reshape(gates, U), wanted[3])
    for ours, theirs in zip(weights[: 4 if name == "gru" else 3], wanted, strict=False):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_documents_start_anew_in_both_directions(reverse):
    weights = of_torch("gru", "")
    x = jnp.asarray(TORCH["x"])
    starts = jnp.zeros(x.shape[:2], bool).at[:, 3].set(True)
    y, _ = layer("gru", weights, x, starts, reverse=reverse)
    for part in (slice(0, 3), slice(3, T)):
        alone = layer("gru", weights, x[:, part], reverse=reverse)[0]
        np.testing.assert_allclose(y[:, part], alone, atol=1e-6)
