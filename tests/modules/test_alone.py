"""Attention, blocks and stacks used by themselves do what their config and arguments say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, LayerKind
from flaxformer_lite.functions import masks
from flaxformer_lite.mixers.attention import Attention
from flaxformer_lite.models import gpt2
from flaxformer_lite.models.skeletons import parts
from flaxformer_lite.modules.block import Block
from flaxformer_lite.modules.context import Context
from flaxformer_lite.modules.stack import Stack

B, T, D = 2, 6, 16
X = jnp.asarray(np.random.default_rng(0).standard_normal((B, T, D)), jnp.float32)
POSITIONS = jnp.arange(T)[None]
KIND = LayerKind(window=0)
LAYERS = {
    "attention": lambda cfg, causal: Attention(parts.attention(cfg, KIND), cfg.execution, causal),
    "block": lambda cfg, causal: Block(parts.layer(cfg, KIND), cfg.execution, causal),
    "stack": lambda cfg, causal: Stack(parts.stack(cfg, "decoder"), cfg.execution, causal),
}


def config(position="nope", **options):
    encoding = registry.resolve_class("positions", position)()
    return gpt2.config("tiny", **{"d_model": D, "num_heads": 2, "mlp_dim": 8, "decoder_layers": 2, "dropout": 0.0,
                                  "init_stddev": 0.3, "position": encoding, "windows": (0,)} | options)  # fmt: skip


def applied(name, cfg, context, x=X, causal=True):
    layer = LAYERS[name](cfg, causal)
    inputs = (POSITIONS, context) if name == "stack" else (context,)
    variables = jax.jit(layer.init)(jax.random.key(0), X, *inputs)
    return jax.jit(layer.apply)(variables, x, *inputs)


@pytest.mark.parametrize("name", LAYERS)
def test_causal_layers_hide_what_comes_later(name):
    cfg, keep = config(), jnp.ones((B, T), bool).at[1, 0].set(False)
    for mask in (None, masks.padding(keep), keep[:, None] & jnp.ones((B, T, T), bool)):
        before, after = (applied(name, cfg, Context(mask=mask), x) for x in (X, X.at[:, -1].set(9.0)))
        np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    hidden = applied(name, cfg, Context(mask=masks.padding(keep)), X.at[1, 0].set(9.0))
    np.testing.assert_array_equal(hidden[1, 1:], applied(name, cfg, Context(mask=masks.padding(keep)))[1, 1:])


@pytest.mark.parametrize("name", LAYERS)
def test_a_structured_mask_shows_a_prefix(name):
    prefix = jnp.arange(T)[None].repeat(B, 0) < 3
    context = Context(mask=masks.causal() | masks.prefix(prefix), structured=True)
    before, after = (applied(name, config(), context, x) for x in (X, X.at[:, 2].set(9.0)))
    assert np.abs(before[:, 0] - after[:, 0]).max() > 1e-3


@pytest.mark.parametrize("position", ["rope", "alibi", "t5_buckets", "shaw"])
def test_attention_alone_heeds_its_encoding(position):
    """Two equal tokens in another order: without positions a row that sees both cannot tell."""
    swapped = X[:, jnp.array([1, 0, 2, 3, 4, 5])]
    for name in ("attention", "block"):
        outs = [applied(name, config(position), Context(), x)[:, -1] for x in (X, swapped)]
        assert np.abs(outs[0] - outs[1]).max() > 1e-4, name
    plain = [applied("attention", config(), Context(), x)[:, -1] for x in (X, swapped)]
    np.testing.assert_allclose(*plain, rtol=1e-5, atol=1e-6)


def test_rope_in_attention_alone_is_that_of_a_stack():
    cfg = config("rope")
    context = Context(phase=cfg.position.phase(POSITIONS, cfg.head_width), prepared=True)
    np.testing.assert_allclose(applied("block", cfg, Context()), applied("block", cfg, context), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_a_stack_alone_adds_positions(position):
    swapped = X[:, jnp.array([1, 0, 2, 3, 4, 5])]
    outs = [applied("stack", config(position), Context(), x)[:, -1] for x in (X, swapped)]
    assert np.abs(outs[0] - outs[1]).max() > 1e-4


def test_scan_keeps_what_layers_sow():
    """`capture_intermediates` finds each layer's output, stacked as their weights are."""
    found = {}
    for scan in (False, True):
        cfg = config(scan=scan)
        stack = LAYERS["stack"](cfg, True)
        variables = stack.init(jax.random.key(0), X, POSITIONS, Context())
        y, sown = stack.apply(variables, X, POSITIONS, Context(), capture_intermediates=True, mutable=["intermediates"])
        found[scan] = y, sown["intermediates"]
    y, sown = found[True]
    (block_out,) = sown["layers"]["block_0"]["mlp"]["__call__"]
    assert block_out.shape == (2, B, T, D)
    assert set(sown["layers"]["block_0"]) == set(found[False][1]["layer_0"])


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_attention_alone_refuses_positions_that_it_never_sees(position):
    with pytest.raises(ConfigError, match="adds to embeddings, which attention by itself does not see; use a Stack"):
        applied("block", config(position), Context())
