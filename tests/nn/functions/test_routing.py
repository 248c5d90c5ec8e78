import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions.routing import balance_loss, expert_load, route_tokens, z_loss

LOGITS = jnp.asarray(np.random.default_rng(0).standard_normal((7, 5)), jnp.float32)


def test_normalized_weights_are_a_softmax_over_the_chosen():
    weights, chosen = route_tokens(LOGITS, 2)
    due = jax.nn.softmax(jnp.take_along_axis(LOGITS, chosen, axis=-1), axis=-1)
    np.testing.assert_allclose(weights, due, rtol=1e-6)
    raw, same = route_tokens(LOGITS, 2, normalize=False, scale=2.0)
    np.testing.assert_array_equal(same, chosen)
    np.testing.assert_allclose(raw / raw.sum(-1, keepdims=True), weights, rtol=1e-6)
    assert (raw.sum(-1) < 2).all()


def test_a_bias_changes_the_choice_and_not_the_weights():
    bias = jnp.zeros(5).at[3].set(10.0)
    weights, chosen = route_tokens(LOGITS, 2, score="sigmoid", normalize=False, bias_X=bias)
    assert (chosen == 3).any(axis=-1).all()
    np.testing.assert_allclose(
        weights, jnp.take_along_axis(jax.nn.sigmoid(LOGITS), chosen, axis=-1), rtol=1e-6
    )
    slope = jax.grad(lambda b: route_tokens(LOGITS, 2, score="sigmoid", bias_X=b)[0].sum())(bias)
    assert not slope.any()


@pytest.mark.parametrize("biased", [False, True])
def test_experts_are_of_the_best_groups(biased):
    """By numpy: the best of a group is its score, or its best two where there is a bias."""
    logits = np.random.default_rng(1).standard_normal((9, 8)).astype(np.float32)
    bias = np.linspace(-0.2, 0.2, 8, dtype=np.float32) if biased else np.zeros(8, np.float32)
    options = {"score": "sigmoid", "groups": 4, "groups_per_token": 2}
    _, chosen = route_tokens(logits, 3, bias_X=jnp.asarray(bias) if biased else None, **options)
    ranks = 1 / (1 + np.exp(-logits)) + bias
    for row, experts in zip(ranks, np.asarray(chosen), strict=True):
        groups = np.sort(row.reshape(4, 2), axis=1)
        best = np.argsort(groups.sum(axis=1) if biased else groups[:, 1])[-2:]
        allowed = [expert for expert in range(8) if expert // 2 in best]
        assert set(experts) == set(sorted(allowed, key=lambda expert: row[expert])[-3:])
    with pytest.raises(ValueError, match=r"groups=3.*8 experts must divide"):
        route_tokens(logits, 3, groups=3, groups_per_token=1)


@pytest.mark.parametrize("options", [{"count": 0}, {"count": 6}, {"count": 2, "score": "relu"}])
def test_what_cannot_be_routed_is_refused(options):
    with pytest.raises(ValueError, match=r"count=|score="):
        route_tokens(LOGITS, **options)


def test_losses_leave_padding_out():
    _, chosen = route_tokens(LOGITS, 2)
    keep = jnp.arange(7) < 4

    @functools.partial(jax.jit, static_argnums=0)
    def losses(n, keep):
        return balance_loss(LOGITS[:n], chosen[:n], keep), z_loss(LOGITS[:n], keep)

    np.testing.assert_allclose(losses(7, keep), losses(4, None), rtol=1e-6)
    assert not np.isclose(losses(7, None), losses(4, None)).any()


def test_an_even_load_has_the_least_loss():
    even = jnp.asarray([[0, 1], [2, 3]])
    np.testing.assert_allclose(balance_loss(jnp.zeros((2, 4)), even), 1.0)
    np.testing.assert_allclose(expert_load(even, 4), [0.25] * 4)
    one = jnp.zeros((2, 4)).at[:, 0].set(50.0)
    np.testing.assert_allclose(balance_loss(one, jnp.zeros((2, 1), int)), 4.0, rtol=1e-5)


def test_the_loss_of_the_normalizer_is_its_mean_square():
    np.testing.assert_allclose(z_loss(jnp.zeros((3, 4))), np.log(4) ** 2, rtol=1e-6)
    np.testing.assert_allclose(z_loss(jnp.full((3, 4), -5.0)), (np.log(4) - 5) ** 2, rtol=1e-6)
