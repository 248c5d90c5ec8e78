import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import attend
from flaxformer_lite.nn.functions import kernels

B = 2
T = 3
S = 5
N = 4
K = 2
H = 8
KERNELS = (kernels.gaussian, kernels.boxcar, kernels.epanechnikov)


@pytest.fixture
def qkv():
    numbers = np.random.default_rng(0)
    shapes = ((B, T, N, H), (B, S, K, H), (B, S, K, 3))
    return tuple(jnp.asarray(numbers.standard_normal(shape, np.float32)) for shape in shapes)


def nadaraya_watson(q, k, v, kernel, bandwidth, visible):
    """The textbook's estimator, one query at a time."""
    out = np.zeros((B, T, N, v.shape[-1]))
    for b, t, n in np.ndindex(B, T, N):
        head = n // (N // K)
        values = [
            kernel(((q[b, t, n] - k[b, s, head]) ** 2).sum() / bandwidth**2) * visible[b, t, s]
            for s in range(S)
        ]
        if sum(values) > 0:
            out[b, t, n] = sum(w * v[b, s, head] for s, w in enumerate(values)) / sum(values)
    return out


@pytest.mark.parametrize(
    ("kernel", "formula"),
    [
        (kernels.gaussian, lambda u: np.exp(-u / 2)),
        (kernels.boxcar, lambda u: float(u <= 1)),
        (kernels.epanechnikov, lambda u: max(0, 1 - u)),
        (lambda u: 1 / (1 + u), lambda u: 1 / (1 + u)),
    ],
)
def test_equals_the_textbook_estimator(qkv, kernel, formula):
    visible = np.random.default_rng(0).random((B, T, S)) > 0.3
    visible[0, 0] = False
    estimate = functools.partial(kernels.kernel_attention, kernel=kernel, bandwidth=3.5)
    out = jax.jit(estimate)(*qkv, visible_BTS=visible)
    expected = nadaraya_watson(*(np.asarray(x, np.float64) for x in qkv), formula, 3.5, visible)
    # some rows see nothing, not all
    assert (expected == 0).all(axis=-1).sum() in range(N, B * T * N)
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("far", [False, True])
def test_a_row_that_counts_nothing_is_zero_and_sends_no_gradient(qkv, kernel, far):
    q, k, v = qkv
    visible = np.full((B, T, S), far)
    k = k + 1e4 if far else k

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2), has_aux=True)
    def gradients(q, k, v):
        out = kernels.kernel_attention(q, k, v, kernel=kernel, visible_BTS=visible)
        return (out + 1).sum(), out

    grads, out = gradients(q, k, v)
    assert not np.any(out) and not any(map(np.any, grads))


def test_softmax_of_large_scores_is_finite_in_value_and_gradient():
    scores = jnp.asarray([[[[1e4, -1e4, 0.0]]]])
    weights = kernels.softmax(scores, jnp.asarray([[[True, True, False]]]))
    np.testing.assert_array_equal(weights, [[[[1.0, 0.0, 0.0]]]])
    assert jnp.isfinite(jax.grad(lambda s: (kernels.softmax(s) ** 2).sum())(scores)).all()


def test_bandwidth_is_a_distance(qkv):
    with pytest.raises(ValueError, match=r"bandwidth=0\.0.*positive"):
        kernels.kernel_attention(*qkv, bandwidth=0.0)


def test_the_bandwidth_can_be_learned(qkv):
    def loss(bandwidth):
        return (kernels.kernel_attention(*qkv, bandwidth=bandwidth) ** 2).sum()

    slope = jax.jit(jax.grad(loss))(3.5)
    np.testing.assert_allclose(slope, (loss(3.51) - loss(3.49)) / 0.02, rtol=1e-2)
    assert abs(slope) > 0.1


def test_scores_are_the_logarithm_of_a_kernel(qkv):
    q, k, v = qkv
    visible = jnp.asarray(np.random.default_rng(0).random((B, T, S)) > 0.3)
    scaled = lambda q, k: kernels.dot_products(q, k) * H**-0.5  # noqa: E731
    close = functools.partial(np.testing.assert_allclose, atol=1e-6)
    close(
        kernels.kernel_attention(q, k, v, score=scaled, visible_BTS=visible),
        attend(q, k, v, mask=visible),
    )
    w = jax.random.normal(jax.random.key(1), (N, H))
    scores = kernels.additive_scores(q, k[:, :, :1], w)
    q, k, w, scores = map(np.asarray, (q, k, w, scores))
    for b, t, s, n in np.ndindex(B, T, S, N):
        close(scores[b, n, t, s], np.tanh(q[b, t, n] + k[b, s, 0]) @ w[n], rtol=1e-5)
