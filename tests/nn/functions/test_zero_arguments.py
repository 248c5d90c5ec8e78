"""Values and gradients are finite where a norm or a divisor is zero: rows without tokens, vectors
of zeros, experts that no token chose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import NormConfig
from flaxformer_lite.config.choices import POOLINGS
from flaxformer_lite.nn.functions import routing
from flaxformer_lite.nn.functions.losses import DeferredLogits, cross_entropy
from flaxformer_lite.nn.functions.maxsim import maxsim
from flaxformer_lite.nn.functions.nearest import nearest
from flaxformer_lite.nn.functions.pooling import mean_pool, pool, to_unit_length, truncate_vectors
from flaxformer_lite.nn.functions.splade import flops
from flaxformer_lite.nn.modules.norms import Norm
from flaxformer_lite.objectives.sums import losses_of_routers

X = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
KEEP = np.array([[1, 1, 1, 0], [0, 0, 0, 0]])  # the second row has no tokens
CHOSEN = np.zeros((4, 2), np.int32)
REAL = KEEP[..., None].astype(np.float32)
NONE = np.zeros(4, np.float32)


def norm_of(kind):
    module = Norm(NormConfig(kind=kind))
    params = module.init(jax.random.key(0), X)

    def of_zeros(x):
        return module.apply(params, x * REAL)

    return of_zeros


def routed(x):
    return routing.route_tokens(x - 300, 2, score="sigmoid")[0]


def balance_without_tokens(x):
    return routing.balance_loss(x[0], CHOSEN, NONE) + routing.z_loss(x[0], NONE)


def sums_without_tokens(x):
    sums = routing.router_sums(x[:1], CHOSEN[None], NONE[None], 0.5, 0.5)
    return sum(losses_of_routers(sums).values())


def entropy_without_labels(x):
    projection = DeferredLogits(x, jnp.ones((5, 3)), None)
    labels = np.zeros((2, 4), np.int32)
    return cross_entropy(projection, labels, np.zeros((2, 4), np.float32)).loss_sum


def similarity_without_tokens(x):
    none = np.zeros((2, 4), np.int32)
    return maxsim(x, none, x, KEEP).sum()


FUNCTIONS = {
    **{f"{way}, unit": lambda x, way=way: pool(way, x, KEEP) for way in POOLINGS},
    **{way: lambda x, way=way: pool(way, x, KEEP, unit=False) for way in POOLINGS},
    **{f"{way} after a prompt": lambda x, way=way: pool(way, x, KEEP, skip=3) for way in POOLINGS},
    "mean_pool": lambda x: mean_pool(x, KEEP),
    "mean_pool, not unit": lambda x: mean_pool(x, KEEP, unit=False),
    "unit length": lambda x: to_unit_length(x * REAL),
    "shortened": lambda x: truncate_vectors(x * REAL, 2),
    "cosine": lambda x: to_unit_length(x[0] * 0) @ to_unit_length(x[1]).T,
    "nearest": lambda x: nearest(x[0] * 0, x[1, 0] * 0, 2)[0],
    "sigmoid scores": routed,
    "balance": balance_without_tokens,
    "balance of a stack": sums_without_tokens,
    "cross-entropy": entropy_without_labels,
    "maxsim": similarity_without_tokens,
    "flops": lambda x: flops(jnp.abs(x[0]), NONE),
    **{kind: norm_of(kind) for kind in ("rms", "layer")},
}


def value_and_gradient(function):
    """The value at X, and the gradient of its sum."""

    @jax.jit
    def both(x):
        y, pullback = jax.vjp(function, x)
        return y, *pullback(jnp.ones_like(y))

    return both(X)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_finite(name):
    y, gradient = value_and_gradient(FUNCTIONS[name])
    assert np.isfinite(y).all() and np.isfinite(gradient).all()


@pytest.mark.parametrize("way", POOLINGS)
def test_a_row_without_tokens_is_zeros_and_moves_no_token(way):
    y, gradient = value_and_gradient(lambda x: pool(way, x, KEEP))
    assert not y[1].any() and not gradient[1].any()
    np.testing.assert_allclose(np.linalg.norm(y[0]), 1, rtol=1e-6)


def test_a_vector_that_is_not_zero_is_divided_by_its_length():
    x = jnp.asarray([[3.0, 4.0], [1e-12, 0.0]])
    np.testing.assert_allclose(to_unit_length(x), [[0.6, 0.8], [1, 0]], rtol=1e-6)
