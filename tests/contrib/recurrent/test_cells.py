"""Recurrent cells compute what torch and flax compute from the same weights, and the scan resets,
passes over and reverses."""

import functools
from pathlib import Path

import flax.linen as nn
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
STEPS = {
    "rnn": (rnn_step, 1, 1),
    "lstm": (lstm_step, 4, 2),
    "gru": (gru_step, 3, 1),
}
CELLS = {
    "rnn": (nn.SimpleCell, [("i", "h")]),
    "lstm": (nn.OptimizedLSTMCell, [(f"i{gate}", f"h{gate}") for gate in "ifgo"]),
    "gru": (nn.GRUCell, [(f"i{gate}", f"h{gate}") for gate in "rzn"]),
}


def layer(name, weights, x_BTD, *marks, **options):
    """Applies (input [D, Z, U], kernel [U, Z, U], bias [Z, U], bias of the candidate [U]) to x."""
    step, _, states = STEPS[name]
    inward, kernel, bias, candidate = weights
    more = (candidate,) if name == "gru" else ()
    gates = jnp.einsum("BTD,DZU->BTZU", x_BTD, inward) + bias[None, None]
    zeros = (jnp.zeros((x_BTD.shape[0], kernel.shape[0])),) * states
    return scan_cell(
        lambda state, gates: step(state, gates, kernel, *more), zeros, gates, *marks, **options
    )


def of_torch(name, suffix, prefix=""):
    """The weights of one direction, by the mapping that cells.py describes."""
    gates = STEPS[name][1]
    inward, kernel = (TORCH[f"{name}/{prefix}weight_{side}_l0{suffix}"] for side in ("ih", "hh"))
    b_input, b_state = (
        TORCH[f"{name}/{prefix}bias_{side}_l0{suffix}"].reshape(gates, U) for side in ("ih", "hh")
    )
    candidate = b_state[-1]
    bias = b_input + (b_state * [[1], [1], [0]] if name == "gru" else b_state)
    return (
        inward.reshape(gates, U, -1).transpose(2, 0, 1),
        kernel.reshape(gates, U, U).transpose(2, 0, 1),
        bias,
        candidate,
    )


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
    np.testing.assert_allclose(
        np.where(keep[..., None], y, 0), TORCH[f"{name}/y"][..., half], atol=1e-5
    )
    for i, last in enumerate(state):
        np.testing.assert_allclose(last, TORCH[f"{name}/state{i}"][int(bool(suffix))], atol=1e-5)
    wanted = of_torch(name, suffix, "grad/")
    gates = STEPS[name][1]
    wanted = (*wanted[:2], TORCH[f"{name}/grad/bias_ih_l0{suffix}"].reshape(gates, U), wanted[3])
    for ours, theirs in zip(weights[: 4 if name == "gru" else 3], wanted, strict=False):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.nightly  # as torch, above
@pytest.mark.parametrize("name", CELLS)
def test_equals_flax_in_values_and_gradients(name):
    kind, parts = CELLS[name]
    cell = kind(U)
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (B, 4, D))
    params = cell.init(keys[1], cell.initialize_carry(keys[1], x[:, 0].shape), x[:, 0])["params"]
    params = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(keys[2], leaf.shape), params)

    def theirs(params, x):
        carry = cell.initialize_carry(keys[1], x[:, 0].shape)
        outputs = []
        for t in range(4):
            carry, y = cell.apply({"params": params}, carry, x[:, t])
            outputs.append(y)
        return jnp.stack(outputs, axis=1)

    def ours(params, x):
        inward, kernel = (
            jnp.stack([params[part[side]]["kernel"] for part in parts], axis=1) for side in (0, 1)
        )
        bias = jnp.stack([params[i].get("bias", 0) + params[h].get("bias", 0) for i, h in parts])
        candidate = jnp.zeros(U)
        if name == "gru":
            candidate = params["hn"]["bias"]
            bias = bias.at[2].set(params["in"]["bias"])
        return layer(name, (inward, kernel, bias, candidate), x)[0]

    run = [
        jax.jit(
            jax.value_and_grad(
                lambda p, x, f=f: (jnp.sum(jnp.sin(f(p, x))), f(p, x)), argnums=(0, 1), has_aux=True
            )
        )
        for f in (theirs, ours)
    ]
    ((_, a), grad_a), ((_, b), grad_b) = (one(params, x) for one in run)
    np.testing.assert_allclose(a, b, atol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), grad_a, grad_b)


@pytest.mark.parametrize("reverse", [False, True])
def test_documents_start_anew_in_both_directions(reverse):
    keys = jax.random.split(jax.random.key(0), 4)
    weights = [
        jax.random.normal(key, shape)
        for key, shape in zip(keys, ((D, 3, U), (U, 3, U), (3, U), (U,)), strict=True)
    ]
    x = jax.random.normal(jax.random.key(1), (B, T, D))
    starts = jnp.zeros((B, T), bool).at[:, 3].set(True)
    y, _ = layer("gru", weights, x, starts, reverse=reverse)
    for part in (slice(0, 3), slice(3, T)):
        np.testing.assert_allclose(
            y[:, part], layer("gru", weights, x[:, part], reverse=reverse)[0], atol=1e-6
        )
