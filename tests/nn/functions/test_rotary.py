import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions.rotary import phase, rotate

FREQUENCIES = jnp.asarray([1.0, 0.3, 0.01])


def complex_rotation(x_BTNH, positions_BT, frequencies, interleaved):
    """Pairs as complex numbers, multiplied by exp(i angle)."""
    pairs = len(frequencies)
    turned = x_BTNH[..., : 2 * pairs].astype(np.float64)
    rest = x_BTNH[..., 2 * pairs :]
    turned = turned.reshape(*turned.shape[:-1], *((pairs, 2) if interleaved else (2, pairs)))
    axis = -1 if interleaved else -2
    z = np.take(turned, 0, axis) + 1j * np.take(turned, 1, axis)
    z = (
        z
        * np.exp(1j * positions_BT[:, :, None] * np.asarray(frequencies, np.float64))[:, :, None, :]
    )
    turned = np.stack([z.real, z.imag], axis).reshape(*z.shape[:-1], 2 * pairs)
    return np.concatenate([turned, rest], axis=-1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("head_dim", [6, 10])
def test_pairs_turn_like_complex_numbers(interleaved, head_dim):
    x = np.random.default_rng(0).normal(size=(2, 5, 3, head_dim)).astype(np.float32)
    positions = np.array([[0, 1, 2, 3, 4], [7, 8, 0, 1, 100]], np.int32)
    turned = rotate(
        jnp.asarray(x), phase(jnp.asarray(positions), FREQUENCIES, interleaved=interleaved)
    )
    np.testing.assert_allclose(
        turned, complex_rotation(x, positions, FREQUENCIES, interleaved), atol=1e-5
    )
    np.testing.assert_array_equal(turned[..., 6:], x[..., 6:])


def test_amplitude_scales_what_turns():
    x = jnp.ones((1, 2, 1, 6))
    plain, doubled = (
        rotate(x, phase(jnp.arange(2)[None], FREQUENCIES, amplitude=a)) for a in (1.0, 2.0)
    )
    np.testing.assert_allclose(doubled, 2 * plain, rtol=1e-6)


def test_bfloat16_is_turned_in_float32():
    x = jax.random.normal(jax.random.key(0), (1, 5, 2, 6), jnp.bfloat16)
    angles = phase(jnp.arange(5)[None] + 1000, FREQUENCIES)
    turned = rotate(x, angles)
    assert turned.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        turned, rotate(x.astype(jnp.float32), angles).astype(jnp.bfloat16)
    )


def test_a_phase_wider_than_the_head_is_refused():
    with pytest.raises(ValueError, match="rotates 6 dimensions but head_dim=4"):
        rotate(jnp.ones((1, 2, 1, 4)), phase(jnp.arange(2)[None], FREQUENCIES))
