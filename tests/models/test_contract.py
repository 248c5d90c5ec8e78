"""The contract of every family, for any position encoding, attention and layout.

tests/contrib/verify/test_families.py has what any model should do.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.nn.modules.layout import stack_layers, unstack_layers
from tests.marks import daily
from tests.models.tiny import (
    DAILY_FAMILIES,
    FAMILIES,
    PAIRS,
    built,
    close,
    ids,
    inputs_of,
    is_encoder_decoder,
    logits_of,
    segments_of,
    small,
)


@pytest.mark.parametrize("family", daily(FAMILIES, ("gpt2",)))
@pytest.mark.parametrize("windows", [pytest.param((0,), marks=pytest.mark.nightly), (3, 0)])
def test_scan_equals_loop_in_value_and_gradient(family, windows):
    loop = small(family, windows=windows)
    scan = dataclasses.replace(loop, scan=True, remat="full")
    model, params = built(loop)
    stacked = stack_layers(params, len(windows))
    other = type(model)(scan)
    assert jax.tree.map(jnp.shape, stacked) == jax.tree.map(
        jnp.shape, jax.eval_shape(other.init, jax.random.key(0), **inputs_of(loop, ids()))["params"]
    )

    def loss(model, params):
        return jnp.sum(jnp.square(logits_of(model, params, **inputs_of(loop, ids()))))

    a, grad_a = jax.jit(jax.value_and_grad(lambda p: loss(model, p)))(params)
    b, grad_b = jax.jit(jax.value_and_grad(lambda p: loss(other, p)))(stacked)
    close(a, b)
    chex.assert_trees_all_close(grad_a, unstack_layers(grad_b), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("remat", [pytest.param("dots", marks=pytest.mark.nightly), "full"])
def test_remat_changes_nothing_but_memory(remat):
    cfg = small("gpt2", number=1)
    model, params = built(cfg)
    other = type(model)(dataclasses.replace(cfg, remat=remat))
    loss = lambda params, model: jnp.sum(logits_of(model, params, input_ids=ids()) ** 2)  # noqa: E731
    grads = [jax.jit(jax.grad(loss), static_argnums=1)(params, m) for m in (model, other)]
    chex.assert_trees_all_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("family", "position"), PAIRS)
def test_packed_documents_never_meet(family, position):
    """Changing document B leaves A's logits, and the gradient of A's loss, bit for bit as they
    were.

    Each alone has the logits that it has when packed, and so have all under blockwise attention.
    """
    cfg = small(
        family, 1, position=registry.resolve_class("positions", position)(), attention="dense"
    )
    model, params = built(cfg)
    segments = jnp.asarray([[1] * 4 + [2] * 4 + [0] * 2] * 2, jnp.int32)
    x = ids()
    y = x.at[:, 4:].set(ids(seed=1)[:, 4:])

    def logits(model, params, x, segments):
        pair = {"input_ids": x} | ({"decoder_input_ids": x} if is_encoder_decoder(cfg) else {})
        return logits_of(model, params, **pair, **segments_of(cfg, segments))

    def loss(params, x):
        packed = logits(model, params, x, segments)
        return jnp.sum(jnp.sin(packed[:, :4])), packed

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, a), grad_a = run(params, x)
    (_, b), grad_b = run(params, y)
    np.testing.assert_array_equal(a[:, :4], b[:, :4])
    assert not np.array_equal(a[:, 4:], b[:, 4:])
    # The token table's rows of B's own tokens get exactly zero either way.
    chex.assert_trees_all_equal(grad_a, grad_b)

    one = jnp.ones((2, 4), jnp.int32)
    close(a[:, :4], logits(model, params, x[:, :4], one))
    close(a[:, 4:8], logits(model, params, x[:, 4:8], one))
    blockwise = type(model)(dataclasses.replace(cfg, attention="blockwise"))
    close(a, logits(blockwise, params, x, segments), 1e-4)


@pytest.mark.parametrize("family", daily(FAMILIES, ("gpt2",)))
def test_dropout_is_on_when_its_key_is_passed(family):
    cfg = small(family, number=1, dropout=0.3)
    model, params = built(cfg)
    apply = jax.jit(
        lambda params, rngs: (
            model.apply({"params": params}, **inputs_of(cfg, ids()), rngs=rngs).logits
        )
    )

    def run(seed):
        rngs = {"dropout": jax.random.key(seed)} if seed else {}
        return np.asarray(apply(params, rngs))

    np.testing.assert_array_equal(run(0), run(0))
    np.testing.assert_array_equal(run(1), run(1))
    assert not np.allclose(run(0), run(1)) and not np.allclose(run(1), run(2))


@pytest.mark.parametrize("family", daily(FAMILIES, ("gpt2",)))
def test_grouped_heads(family):
    cfg = small(family, number=1, num_kv_heads=2)
    model, params = built(cfg)
    wide = type(model)(dataclasses.replace(cfg, num_kv_heads=4))

    def repeat(path, x):
        names = [key.key for key in path]
        return jnp.repeat(x, 2, axis=-2) if names[-2] in ("key", "value") else x

    repeated = jax.tree_util.tree_map_with_path(repeat, params)
    close(
        *(logits_of(m, p, **inputs_of(cfg, ids())) for m, p in ((model, params), (wide, repeated)))
    )


def test_prefix_sees_itself_both_ways():
    cfg = small("gpt2", number=1)
    model, params = built(cfg)
    prefix = jnp.asarray([[1] * 4 + [0] * 6] * 2, jnp.int32)
    x = ids()
    changed = x.at[:, 3].set((x[:, 3] % 36) + 1)
    a, b = (
        np.asarray(logits_of(model, params, input_ids=i, prefix_mask=prefix)) for i in (x, changed)
    )
    assert not np.array_equal(a[:, 0], b[:, 0]), "the first token of the prefix sees its last"
    changed = x.at[:, 8].set((x[:, 8] % 36) + 1)
    b = np.asarray(logits_of(model, params, input_ids=changed, prefix_mask=prefix))
    np.testing.assert_array_equal(a[:, :8], b[:, :8])


@pytest.mark.parametrize("family", DAILY_FAMILIES)
def test_features_hold_what_the_logits_are_made_of(family):
    cfg = small(family, number=1)
    model, params = built(cfg)
    features = jax.jit(
        lambda p: model.apply({"params": p}, **inputs_of(cfg, ids()), method="features").projection
    )
    close(features(params).logits(), logits_of(model, params, **inputs_of(cfg, ids())))


def test_masked_positions_are_the_rows_of_all_positions():
    cfg = small("bert", number=1)
    model, params = built(cfg)
    at = jnp.asarray([[1, 5], [0, 9]], jnp.int32)
    some = logits_of(model, params, input_ids=ids(), masked_positions=at)
    close(
        some, jnp.take_along_axis(logits_of(model, params, input_ids=ids()), at[:, :, None], axis=1)
    )
