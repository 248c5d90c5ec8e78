"""Attention, blocks and stacks used by themselves do what their config and arguments say."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import init_cache, init_stack_cache, registry
from flaxformer_lite.config import ConfigError, Execution, LayerKind, StackConfig
from flaxformer_lite.models import build_model, gpt2
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.mixers.attention import Attention, AttentionConfig
from flaxformer_lite.nn.modules.block import Block
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.stack import Stack
from tests.marks import daily

B = 2
T = 6
D = 16
X = jnp.asarray(np.random.default_rng(0).standard_normal((B, T, D)), jnp.float32)
POSITIONS = jnp.arange(T)[None]
KIND = LayerKind(window=0)
LAYERS = {
    "attention": lambda cfg, causal: Attention(
        build_layers.attention(cfg, KIND), cfg.execution, causal
    ),
    "block": lambda cfg, causal: Block(build_layers.layer(cfg, KIND), cfg.execution, causal),
    "stack": lambda cfg, causal: Stack(build_layers.stack(cfg, "decoder"), cfg.execution, causal),
}


def config(position="nope", **options):
    encoding = registry.resolve_class("positions", position)()
    return gpt2.config(
        "tiny",
        **{
            "d_model": D,
            "num_heads": 2,
            "mlp_dim": 8,
            "decoder_layers": 1,
            "dropout": 0.0,
            "init_stddev": 0.3,
            "position": encoding,
            "windows": (0,),
        }
        | options,
    )


@functools.partial(jax.jit, static_argnums=0)
def begun(layer, x, *inputs):
    """One program for all inputs of one shape."""
    return layer.apply(layer.init(jax.random.key(0), X, *inputs), x, *inputs)


def applied(name, cfg, context, x=X, causal=True):
    inputs = (POSITIONS, context) if name == "stack" else (context,)
    return begun(LAYERS[name](cfg, causal), x, *inputs)


@pytest.mark.parametrize("name", daily(LAYERS, ("stack",)))
def test_causal_layers_hide_what_comes_later(name):
    cfg = config()
    keep = jnp.ones((B, T), bool).at[1, 0].set(False)
    for mask in (None, masks.padding(keep), keep[:, None] & jnp.ones((B, T, T), bool)):
        before, after = (
            applied(name, cfg, Context(mask=mask), x) for x in (X, X.at[:, -1].set(9.0))
        )
        np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    hidden = applied(name, cfg, Context(mask=masks.padding(keep)), X.at[1, 0].set(9.0))
    np.testing.assert_array_equal(
        hidden[1, 1:], applied(name, cfg, Context(mask=masks.padding(keep)))[1, 1:]
    )


@pytest.mark.parametrize("position", daily(["rope", "alibi", "t5_buckets", "shaw"], ["t5_buckets"]))
def test_attention_alone_heeds_its_encoding(position):
    """Two equal tokens in another order: without positions a row that sees both cannot tell."""
    swapped = X[:, jnp.array([1, 0, 2, 3, 4, 5])]
    for name in ("attention", "block"):
        outs = [applied(name, config(position), Context(), x)[:, -1] for x in (X, swapped)]
        assert np.abs(outs[0] - outs[1]).max() > 1e-4, name
    plain = [applied("attention", config(), Context(), x)[:, -1] for x in (X, swapped)]
    np.testing.assert_allclose(*plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("position", daily(["learned", "sinusoidal"], ["learned"]))
def test_a_stack_alone_adds_positions(position):
    swapped = X[:, jnp.array([1, 0, 2, 3, 4, 5])]
    outs = [applied("stack", config(position), Context(), x)[:, -1] for x in (X, swapped)]
    assert np.abs(outs[0] - outs[1]).max() > 1e-4


@pytest.mark.nightly
def test_scan_keeps_what_layers_sow():
    """`capture_intermediates` finds each layer's output, stacked as their weights are."""
    found = {}
    for scan in (False, True):
        cfg = config(scan=scan, decoder_layers=2)
        stack = LAYERS["stack"](cfg, True)
        variables = jax.jit(stack.init)(jax.random.key(0), X, POSITIONS, Context())
        keeping = functools.partial(
            stack.apply, capture_intermediates=True, mutable=["intermediates"]
        )
        y, sown = jax.jit(keeping)(variables, X, POSITIONS, Context())
        found[scan] = y, sown["intermediates"]
    y, sown = found[True]
    (block_out,) = sown["layers"]["block_0"]["mlp"]["__call__"]
    assert block_out.shape == (2, B, T, D)
    assert set(sown["layers"]["block_0"]) == set(found[False][1]["layer_0"])


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_attention_alone_refuses_positions_that_it_never_sees(position):
    with pytest.raises(ConfigError, match=r"adds to embeddings.*use a Stack"):
        applied("block", config(position), Context())


def test_cross_attention_without_anything_to_read_says_so():
    layer = Attention(build_layers.attention(config(), KIND, cross=True))
    with pytest.raises(ConfigError, match="needs the encoder's output"):
        layer.init(jax.random.key(0), X)


@pytest.mark.nightly
def test_a_layer_without_a_mixer_keeps_no_cache():
    cfg = config()
    alone = dataclasses.replace(build_layers.layer(cfg, KIND), mixer=None)
    stack = dataclasses.replace(
        build_layers.stack(cfg, "decoder"),
        num_layers=2,
        pattern=(build_layers.layer(cfg, KIND), alone),
    )
    layer = Stack(stack, cfg.execution, causal=True)
    cache = init_stack_cache(stack, B, T, D, cfg.execution)
    variables = jax.jit(layer.init)(jax.random.key(0), X)
    apply = jax.jit(layer.apply)
    whole = apply(variables, X)
    y = []
    for t in range(T):
        one, cache = apply(variables, X[:, t : t + 1], POSITIONS[:, t : t + 1], cache=cache)
        y.append(one)
    assert cache[1] is None
    np.testing.assert_allclose(jnp.concatenate(y, axis=1), whole, atol=1e-5)


def fed(name, cfg, capacity, causal=True):
    """A layer, its variables and an empty cache."""
    layer = LAYERS[name](cfg, causal)
    stack = build_layers.stack(cfg, "decoder")
    cache = init_stack_cache(stack, B, capacity, D, cfg.execution)
    variables = jax.jit(layer.init)(jax.random.key(0), X)
    return layer, variables, cache if name == "stack" else cache[0]


@pytest.mark.parametrize("scan", daily([False, True], [False]))
@pytest.mark.parametrize("name", daily(LAYERS, ("attention", "stack")))
def test_tokens_beyond_the_cache_are_refused_or_nan(name, scan):
    if scan and name != "stack":
        return
    layer, variables, cache = fed(name, config("rope", scan=scan), 8)
    call = jax.jit(lambda x, cache: layer.apply(variables, x, cache=cache)[0])
    _, held = jax.jit(layer.apply)(variables, X, cache=cache)
    with pytest.raises(
        ConfigError, match=r"6 tokens from slot 6 on:.*cache.*8 slots;.*make.*longer"
    ):
        layer.apply(variables, X, cache=held)
    assert np.isnan(call(X, held)).all() and np.isfinite(call(X[:, :2], held)).all()


@pytest.mark.parametrize("scan", [False, True])
def test_a_cache_that_is_not_the_stacks_is_refused(scan):
    layer, variables, cache = fed("stack", config(scan=scan), 8)
    for wrong, message in (
        (
            jax.tree.map(lambda x: x if x.ndim < 2 else jnp.repeat(x, 2, axis=int(scan)), cache),
            "cache has 4 rows for 2 rows",
        ),
        (
            [*cache, cache[0]],
            f"cache has {len(cache) + 1} entries for a stack that keeps {len(cache)}",
        ),
        (cache[0], "cache is a LayerCache: must be a list with the caches of all layers"),
    ):
        with pytest.raises(ConfigError, match=message):
            layer.apply(variables, X, cache=wrong)
    layer, variables, _ = fed("attention", config(), 8)
    with pytest.raises(ConfigError, match=r"cache is a list.*LayerCache"):
        layer.apply(variables, X, cache=cache)


def test_a_cache_of_another_window_is_refused():
    made, reads = (AttentionConfig(num_heads=2, window=window) for window in (2, 4))
    cache = made.init_cache(B, 8, D, jnp.float32)
    layer = Attention(made, causal=True)
    variables = jax.jit(layer.init)(jax.random.key(0), X)
    apply = jax.jit(layer.apply)
    _, cache = apply(variables, X, cache=cache)
    apply(variables, X[:, :1], cache=cache)
    for cfg in (reads, AttentionConfig(num_heads=2)):
        with pytest.raises(
            ConfigError, match=f"keeps the last 2 positions for a layer with window={cfg.window}"
        ):
            Attention(cfg, causal=True).apply(variables, X[:, :1], cache=cache)


def test_each_maker_of_caches_names_the_other():
    cfg = config()
    with pytest.raises(
        ConfigError,
        match=r"init_cache of StackConfig.*pass model.cfg; for a Stack.*init_stack_cache",
    ):
        init_cache(build_layers.stack(cfg, "decoder"), B, T)
    with pytest.raises(
        ConfigError, match=r"init_stack_cache of ModelConfig.*for.*whole.*init_cache"
    ):
        init_stack_cache(cfg, B, T, D)


def test_a_scan_leaves_out_no_layer():
    pattern = tuple(build_layers.layer(config(), LayerKind(window=window)) for window in (2, 0))
    stack = StackConfig(num_layers=3, pattern=pattern)
    scanned = Execution(scan=True)
    message = "scan=True, pattern: 3 layers are no multiple of the pattern of 2; set scan=False."
    with pytest.raises(ConfigError, match=message):
        Stack(stack, scanned).init(jax.random.key(0), X)
    with pytest.raises(ConfigError, match=message):
        init_stack_cache(stack, B, T, D, scanned)


def test_ids_that_a_family_counts_on_are_asked_for():
    ids = jnp.ones((1, 4), jnp.int32)
    for family, options, message in (
        ("roberta", {"encoder_layers": 1, "pad_token_id": None}, "pad_token_id=None"),
        (
            "bart",
            {"encoder_layers": 1, "decoder_layers": 1, "decoder_start_token_id": None},
            "decoder_start_token_id=None",
        ),
    ):
        model = build_model(family, d_model=8, num_heads=2, mlp_dim=8, vocab_size=16, **options)
        with pytest.raises(ConfigError, match=message):
            model.init(jax.random.key(0), ids)


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_passed_in_the_place_of_another_is_named(name):
    layer = LAYERS[name](config(), True)
    for second in (masks.causal(), jnp.ones((B, T), bool)):
        with pytest.raises(ConfigError, match=r"pass it as mask=|position_ids: must be integer"):
            jax.eval_shape(layer.init, jax.random.key(0), X, second)
    with pytest.raises(TypeError, match=r"call it: mask=causal\(\)"):
        jax.eval_shape(lambda: layer.init(jax.random.key(0), X, mask=masks.causal))
    for mask, message in (
        (masks.padding(np.ones((B, T - 1), bool)), "5 columns for 6 keys"),
        (
            np.ones((B, T), bool),
            r"mask has shape \(2, 6\): must be \[1 or 2, 6, 6\]; a padding mask is padding",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda mask=mask: layer.init(jax.random.key(0), X, mask=mask))


@pytest.mark.parametrize("name", ["attention", "stack"])
@pytest.mark.parametrize("ids", [np.arange(T - 1)[None], np.arange(T)[None] * 1.0])
def test_position_ids_of_another_shape_or_kind_are_refused(name, ids):
    layer = LAYERS[name](config("rope"), True)
    key = "position_ids" if name == "attention" else "position_ids_BT"
    with pytest.raises(
        ConfigError,
        match=r"position_ids: (must be integer \[1 or 2, 6\]|is a Window; pass it as mask=)",
    ):
        jax.eval_shape(lambda: layer.init(jax.random.key(0), X, **{key: ids}))


def test_with_a_cache_a_mask_is_over_all_slots():
    cfg = config()
    slots = T + 2
    stack = LAYERS["stack"](cfg, True)
    attention = LAYERS["attention"](cfg, True)
    caches = init_stack_cache(build_layers.stack(cfg, "decoder"), B, slots, D, cfg.execution)
    keep = np.array([[True] * slots, [False] + [True] * (slots - 1)])
    for layer, options in ((stack, {"cache": caches}), (attention, {"cache": caches[0]})):
        for mask in (masks.padding(keep[:, :T]), masks.dense(np.tri(T, dtype=bool))):
            with pytest.raises(
                ValueError, match=f"has {T} columns for a cache of {slots} slots: .*over all slots"
            ):
                jax.eval_shape(
                    lambda layer=layer, mask=mask, options=options: layer.init(
                        jax.random.key(0), X, mask=mask, **options
                    )
                )
