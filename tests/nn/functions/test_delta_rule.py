"""The delta rule in chunks equals its recurrence, token by token, in packed documents too."""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.nn.functions.delta_rule import causal_convolution, gated_delta_rule

B = 2
T = 11
N = 2
H = 3
F = 4
STARTS = jnp.zeros((B, T), bool).at[0, jnp.array([2, 3, 7])].set(True)


def arrays():
    keys = jax.random.split(jax.random.key(0), 6)
    q, k = (jax.random.normal(key, (B, T, N, H)) for key in keys[:2])
    k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
    v = jax.random.normal(keys[2], (B, T, N, F))
    log_decay = -3 * jax.random.uniform(keys[3], (B, T, N))
    rate = jax.random.uniform(keys[4], (B, T, N))
    return q, k, v, log_decay, rate, jax.random.normal(keys[5], (B, N, H, F))


def by_token(q, k, v, log_decay, rate, state):
    """The equations of the module."""

    def step(state, t):
        state = jnp.where(STARTS[:, t, None, None, None], 0, state)
        state = state * jnp.exp(log_decay[:, t])[..., None, None]
        known = jnp.einsum("bnhf,bnh->bnf", state, k[:, t])
        write = rate[:, t][..., None] * (v[:, t] - known)
        state = state + k[:, t][..., None] * write[:, :, None]
        return state, jnp.einsum("bnhf,bnh->bnf", state, q[:, t])

    state, out = jax.lax.scan(step, state, jnp.arange(T))
    return jnp.swapaxes(out, 0, 1), state


def test_chunks_equal_the_recurrence():
    weights = jax.random.normal(jax.random.key(1), (B, T, N, F))

    def with_gradient(rule):
        def loss(*given):
            out, state = rule(*given)
            return (out * weights).sum() + (state**2).sum()

        return rule(*arrays()), jax.grad(loss, range(6))(*arrays())

    chunked = lambda *given: gated_delta_rule(*given, STARTS, chunk=4)  # noqa: E731
    both = jax.jit(lambda: (with_gradient(chunked), with_gradient(by_token)))()
    for one, due in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(one, due, rtol=2e-5, atol=2e-5)


def test_a_convolution_stays_in_its_document_and_continues():
    x = jax.random.normal(jax.random.key(2), (B, T, H))
    weights = jax.random.normal(jax.random.key(3), (H, 3))
    before = jnp.zeros((B, 2, H))
    run = jax.jit(causal_convolution)
    whole, last = run(x, weights, before, STARTS)
    np.testing.assert_array_equal(last, x[:, -2:])
    np.testing.assert_allclose(whole[0, 7:], run(x[:1, 7:], weights, before[:1])[0][0], rtol=1e-6)
    plain, _ = run(x, weights, before)
    columns = [np.convolve(x[1, :, d], weights[d, ::-1])[:T] for d in range(H)]
    np.testing.assert_allclose(plain[1], np.stack(columns, axis=-1), rtol=1e-5, atol=1e-6)
    first, kept = run(x[:, :4], weights, before)
    rest, _ = run(x[:, 4:], weights, kept)
    np.testing.assert_allclose(jnp.concatenate([first, rest], axis=1), plain, rtol=1e-6)
