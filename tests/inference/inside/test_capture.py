"""Values inside models, by the same names however layers are run; replaced, they change what
follows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import (
    Attention,
    AttentionConfig,
    build_model,
    capture,
    init_cache,
    names_of,
    registry,
    sharding,
)
from flaxformer_lite.config import ConfigError, LayerKind, MeshConfig
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.nn.functions.sharding import UNSHARDED
from flaxformer_lite.nn.mixers.local_global import LocalGlobalConfig
from flaxformer_lite.nn.modules.documents import StateReader
from flaxformer_lite.nn.modules.layout import stack_layers
from flaxformer_lite.sharding.activations import MeshSharding
from tests.marks import daily
from tests.models.tiny import built, close, ids, inputs_of, small

WAYS = {
    "scan": {"scan": True},
    "remat": {"remat": "full"},
    "scanned remat": {"scan": True, "remat": "dots"},
    "blockwise": {"attention": "blockwise"},
    "mesh": {"sharding": MeshConfig(data=2, context=2, tensor=2)},
    "trained": {"sharding": MeshConfig(data=1)},
}
RARE = [("t5", "scan"), ("shared", "remat"), ("bert", "remat"), ("grouped", "mesh")]
RARE += [("t5", "blockwise"), ("shared", "trained"), ("kinds", "scanned remat")]
RUN = [("gpt2", "scan"), ("gpt2", "trained")]
MODELS = {
    "bert": ("bert", {}),
    "gpt2": ("gpt2", {}),
    "t5": ("t5", {}),
    "shared": ("albert", {"encoder_layers": 3}),
    "kinds": ("gpt2", {"decoder_layers": 4, "pattern": (LayerKind(window=2), LayerKind())}),
    "grouped": ("llama", {"num_kv_heads": 2}),
}


@functools.cache
def model_of(name):
    family, overrides = MODELS[name]
    cfg = small(family, **overrides)
    return *built(cfg), inputs_of(cfg, ids())


def traced(model, params, inputs, names="*", **options):
    """`capture` as one program: on its own each operation is compiled by itself."""
    return jax.jit(lambda p, inputs: capture(model, p, inputs, names, **options))(params, inputs)


@functools.cache
def plain(name):
    return traced(*model_of(name))


def run_as(name, way):
    """The model of this name, run in another way, and its parameters."""
    model, params, inputs = model_of(name)
    options = dict(WAYS[way])
    placed = UNSHARDED
    if "sharding" in options:
        placed = MeshSharding(sharding.build_mesh(options.pop("sharding")))
    cfg = dataclasses.replace(model.cfg, **options)
    if cfg.scan:
        params = stack_layers(params, len(cfg.kinds))
    return build_model(cfg).clone(sharding=placed), params, inputs


@pytest.mark.parametrize(
    "family", daily(registry.available("models"), ("albert", "bert", "gpt2", "recurrent", "t5"))
)
def test_every_family_has_the_usual_values(family):
    cfg = small(family)
    found = names_of(build_model(cfg), inputs_of(cfg, ids()))
    assert any(name.endswith("embed") for name in found)
    for side in ("encoder", "decoder"):
        if not getattr(cfg, f"{side}_layers"):
            continue
        pattern = build_layers.stack(cfg, side).pattern
        for layer in range(2):
            assert found[f"{side}/layer_{layer}"].shape == (2, 10, 16)
            weights = found.get(f"{side}/layer_{layer}/attention/weights")
            mixer = pattern[layer % len(pattern)].mixer
            in_blocks = isinstance(mixer, LocalGlobalConfig) and side == "encoder"
            if isinstance(mixer, StateReader) or in_blocks:
                assert weights is None
            else:
                assert weights.shape == (2, 4, 10, 10)


@pytest.mark.parametrize("name", daily(["bert", "gpt2", "t5", "grouped"], ["gpt2"]))
def test_values_are_those_of_the_equations(name):
    """Each block's parts add up to its output, and the weights are the softmax of the queries and
    keys."""
    model, params, inputs = model_of(name)
    out, values = plain(name)
    alone = jax.jit(model.apply)({"params": params}, **inputs)
    close(out.last_hidden_state, alone.last_hidden_state)
    side = "encoder" if model.cfg.encoder_layers else "decoder"
    for layer in range(2):
        above = f"{side}/layer_{layer}"
        here = f"{above}/attention"
        query, key, value, heads = (
            values[f"{here}/{part}"] for part in ("query", "key", "value", "heads")
        )
        own = params[side][f"layer_{layer}"]["attention"]["out"]
        mixed = np.einsum("BTNH,NHD->BTD", heads, own["kernel"])
        close(mixed + np.asarray(own.get("bias", 0)), values[here])
        weights = np.asarray(values[f"{here}/weights"])
        close(weights.sum(-1), np.ones(weights.shape[:-1]))
        v_BSNH = np.repeat(value, 4 // value.shape[2], axis=2)
        close(np.einsum("BNTS,BSNH->BTNH", weights, v_BSNH), heads)
        if name in ("bert", "t5"):  # no mask
            logits = np.asarray(values[f"{here}/logits"])
            close(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), weights)
        if name == "bert":  # nothing is added
            close(np.einsum("BTNH,BSNH->BNTS", query, key) / 2, logits)
        else:
            first = "encoder_embed" if name == "t5" else "embed"
            before = values[f"{side}/layer_{layer - 1}" if layer else first]
            close(before + values[here] + values[f"{above}/mlp"], values[above])
    if name in ("gpt2", "grouped"):
        np.testing.assert_array_equal(np.triu(weights, 1), 0)
    close(values.get("lm_head", values.get("masked_lm")), out.logits)


@functools.cache
def patches_of(name):
    """Three patches of the first two layers, and the values under them."""
    values = plain(name)[1]
    side = "encoder" if name in ("bert", "t5", "shared") else "decoder"
    patch = {
        f"{side}/layer_1/attention/weights": lambda weights: weights[..., ::-1],
        f"{side}/layer_1/mlp": values[f"{side}/layer_0/mlp"],
        f"{side}/layer_0/attention/heads": lambda z_BTNH: z_BTNH.at[:, :, 1].set(0),
    }
    return patch, traced(*model_of(name), patch=patch)[1]


@pytest.mark.parametrize(("name", "way"), daily(RUN + RARE, RUN))
def test_names_values_and_patches_are_the_same_however_layers_run(name, way):
    patch, expected = patches_of(name)
    _, values = traced(*run_as(name, way), patch=patch)
    before = plain(name)[1]
    assert values.keys() == expected.keys() == before.keys()
    for key, value in values.items():
        close(value, expected[key], 1e-4)
    side = next(iter(patch)).split("/")[0]
    for layer in range(2):
        key = f"{side}/layer_{layer}"
        assert np.abs(values[key] - before[key]).max() > 1e-3
    first = f"{side}/layer_0/attention/weights"  # computed before what is replaced
    close(values[first], before[first], 1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_the_program_is_the_same_without_a_wish(name):
    model, params, inputs = model_of(name)
    programs = [
        str(jax.make_jaxpr(run)(params, inputs))
        for run in (
            lambda p, inputs: model.apply({"params": p}, **inputs),
            lambda p, inputs: capture(model, p, inputs, ())[0],
            lambda p, inputs: capture(model, p, inputs),
        )
    ]
    assert programs[0] == programs[1] != programs[2]


@pytest.mark.nightly
def test_a_step_with_a_cache_has_the_rows_of_the_whole():
    _, expected = plain("t5")
    model, params, inputs = run_as("t5", "scan")
    cache = init_cache(model.cfg, 2, 12)
    tokens = inputs["decoder_input_ids"]
    layer = "decoder/layer_1"
    own, cross = (f"{layer}/{part}/weights" for part in ("attention", "cross_attention"))
    for start, stop in ((0, 6), (6, 7)):
        part = inputs | {"decoder_input_ids": tokens[:, start:stop], "cache": cache}
        out, values = traced(model, params, part, ("layer_1", "layer_1/*/weights"))
        cache = out.cache
        close(values[layer], expected[layer][:, start:stop])
        close(values[own][..., :stop], expected[own][:, :, start:stop, :stop])
        assert not np.any(values[own][..., stop:])
        close(values[cross], expected[cross][:, :, start:stop])


def test_a_patch_is_what_follows():
    model, params, inputs = model_of("gpt2")
    out, values = plain("gpt2")
    first = "decoder/layer_0"
    same, _ = traced(model, params, inputs, (), patch={first: values[first]})
    close(same.logits, out.logits)
    patch = {"decoder/layer_1/attention": 0.0, "decoder/layer_1/mlp": 0}
    patch |= {f"{first}/attention/weights": jnp.full((2, 4, 10, 10), 0.1)}
    _, rest = traced(model, params, inputs, ("layer_*", "heads"), patch=patch)
    np.testing.assert_array_equal(rest["decoder/layer_1"], rest[first])
    mean = np.asarray(values[f"{first}/attention/value"]).mean(1, keepdims=True)
    close(rest[f"{first}/attention/heads"], np.broadcast_to(mean, (2, 10, 4, 4)))


def test_gradients_pass_through_patches_and_values():
    made = {False: model_of("gpt2"), True: run_as("gpt2", "scan")}  # outside of what is traced

    @functools.partial(jax.jit, static_argnums=1)
    def loss(shift, scan):
        model, params, inputs = made[scan]
        patch = {
            "decoder/layer_0": lambda x: x + shift,
            "decoder/layer_1/attention/logits": lambda x: x * (1 + shift),
        }
        out, values = capture(model, params, inputs, "layer_1/attention/weights", patch=patch)
        return out.logits.var() + jnp.square(values["decoder/layer_1/attention/weights"]).sum()

    slope = (loss(1e-2, False) - loss(-1e-2, False)) / 2e-2
    assert abs(slope) > 0.1
    close(jax.grad(loss)(0.0, True), slope, 2e-2)


def test_shared_layers_are_patched_one_at_a_time():
    _, before = plain("shared")
    _, after = traced(*model_of("shared"), "layer_*", patch={"encoder/layer_1": lambda x: x + 1})
    np.testing.assert_array_equal(after["encoder/layer_0"], before["encoder/layer_0"])
    close(after["encoder/layer_1"], before["encoder/layer_1"] + 1)
    assert np.abs(after["encoder/layer_2"] - before["encoder/layer_2"]).max() > 1e-3


def test_dropout_is_on_with_a_key_and_weights_are_before_it():
    model, params = built(small("gpt2", dropout=0.5, dropout_at=("attention",)))
    name = "decoder/layer_0/attention/weights"
    keys = {"dropout": jax.random.key(1)}
    outs = []
    for patch in ({}, {name: lambda weights: weights}):
        out, values = traced(model, params, ids(), name, patch=patch, rngs=keys)
        close(values[name].sum(-1), np.ones((2, 4, 10)))
        outs.append(out.logits)
    close(*outs)
    assert np.abs(outs[0] - jax.jit(model.apply)({"params": params}, ids()).logits).max() > 1e-3


FIRST = "decoder/layer_0"
WRONG = [
    (
        "decoder/layer_7",
        {},
        r"_7': matches nothing; did you mean 'decoder/layer_[01]'\?; there are",
    ),
    (["layer_*", "atention/weights"], {}, r"='atention/weights': .*layer_\*/attention/weights"),
    ("", {}, "names='': matches nothing"),
    ([3], {}, "names=3: a name is text"),
    ((), {f"{FIRST}/weights": 0}, f"patch of '{FIRST}/weights':.*no such value;.*did you mean"),
    ((), {FIRST: jnp.zeros((1, 10, 16))}, r"\(1, 10, 16\);.*must.*array.*\(2, 10, 16\)"),
    ((), {FIRST: lambda x: None}, f"patch of '{FIRST}': is None; must be an array"),
    ((), {"embed": lambda x: x[:, :1]}, r"of 'embed': has shape \(2, 1, 16\); must be an array"),
    ((), {"lm_head": 0}, r"patch of 'lm_head':.*after the modules"),
]


@pytest.mark.parametrize(("names", "patch", "message"), WRONG)
@pytest.mark.parametrize("way", ["plain", "scan"])
def test_wrong_names_and_shapes_are_refused(names, patch, message, way):
    with pytest.raises(ConfigError, match=message):
        model, params, inputs = model_of("gpt2") if way == "plain" else run_as("gpt2", way)
        jax.eval_shape(lambda p: capture(model, p, inputs, names, patch=patch), params)


def test_a_layer_by_itself_takes_its_input_without_a_name():
    layer = Attention(AttentionConfig(num_heads=2), causal=True)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 4, 16)), jnp.float32)
    params = layer.init(jax.random.key(0), x)["params"]
    output, values = capture(layer, params, x, "weights")
    np.testing.assert_array_equal(output, layer.apply({"params": params}, x))
    np.testing.assert_allclose(values["weights"].sum(-1), np.ones((1, 2, 4)), rtol=1e-5)
    named = capture(layer, params, {"x_BTD": x}, "weights")[1]
    np.testing.assert_array_equal(named["weights"], values["weights"])


def test_flags_of_a_model_are_refused():
    model, params, inputs = model_of("gpt2")
    with pytest.raises(ConfigError, match=r"output_attentions:.*leave it out"):
        capture(model, params, inputs | {"output_attentions": True})
