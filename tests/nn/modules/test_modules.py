"""The modules against plain numpy, and the weights they start from."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import InitConfig, MeshConfig, NormConfig
from flaxformer_lite.nn.feed_forwards.mlp import FeedForward, MlpConfig
from flaxformer_lite.nn.functions.norms import layer_norm, rms_norm
from flaxformer_lite.nn.functions.sharding import PlacedExecution
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.embed import EmbedConfig, TokenEmbed
from flaxformer_lite.nn.modules.kv_cache import append, slots
from flaxformer_lite.nn.modules.layout import stack_layers, unstack_layers
from flaxformer_lite.nn.modules.norms import Norm
from flaxformer_lite.sharding import build_mesh
from flaxformer_lite.sharding.activations import MeshSharding

rng = np.random.default_rng(0)


def run(module, x, seed=0):
    params = module.init(jax.random.key(seed), x)["params"]
    return params, module.apply({"params": params}, x)


def test_interceptors_see_the_hidden_activation_of_a_feed_forward_layer():
    seen = []

    def note(call, args, kwargs, context):
        seen.append((context.module.name, [x.shape for x in args]))
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        run(FeedForward(MlpConfig(mlp_dim=12)), jnp.ones((2, 5, 8)))
    assert ("down", [(2, 5, 12)]) in seen


def test_einsum_names_its_weight_and_bias():
    x = jnp.asarray(rng.standard_normal((2, 5, 8)), jnp.float32)
    layer = Einsum("BTD,DNH->BTNH", {"D": 8, "N": 2, "H": 4}, bias=True)
    params, y = run(layer, x)
    assert jax.tree.map(jnp.shape, params) == {"kernel": (8, 2, 4), "bias": (2, 4)}
    params["bias"] = params["bias"] + 0.5
    y = layer.apply({"params": params}, x)
    np.testing.assert_allclose(
        y, np.einsum("btd,dnh->btnh", x, params["kernel"]) + 0.5, rtol=1e-5, atol=1e-6
    )


def test_a_mesh_multiplies_by_the_weight_as_it_is_sharded():
    placed = MeshSharding(build_mesh(MeshConfig(data=1, fsdp=8)))
    x = jnp.asarray(rng.standard_normal((8, 3, 16)), jnp.float32)
    layer = Einsum("BTD,DNH->BTNH", {"D": 16, "N": 2, "H": 4})
    params, y = run(layer, x)
    on_mesh = layer.clone(execution=PlacedExecution(sharding=placed))
    text = str(jax.make_jaxpr(lambda p: on_mesh.apply({"params": p}, x))(params))
    assert "dot_general" in text
    assert "reshape" not in text
    np.testing.assert_allclose(on_mesh.apply({"params": params}, x), y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("init", "residual", "stddev"),
    [
        ("normal", True, 0.02),
        ("normal_residual", True, 0.02 / np.sqrt(2 * 4)),
        ("normal_residual", False, 0.02),
        ("fan_in", False, 64**-0.5),
        ("xavier", False, np.sqrt(2 / (64 + 512))),
    ],
)
def test_initial_weights_have_the_published_spread(init, residual, stddev):
    initial = InitConfig(kind=init, layers=4)
    layer = Einsum("BTD,DNH->BTNH", {"D": 64, "N": 16, "H": 32}, initial=initial, residual=residual)
    kernel = layer.init(jax.random.key(0), jnp.ones((1, 1, 64)))["params"]["kernel"]
    assert abs(float(kernel.mean())) < 4 * stddev / np.sqrt(kernel.size)
    np.testing.assert_allclose(float(kernel.std()), stddev, rtol=0.02)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_norms_equal_their_equations(dtype):
    x = jnp.asarray(3 + 2 * rng.standard_normal((2, 3, 8)), dtype)
    scale, bias = (jnp.asarray(rng.standard_normal(8), jnp.float32) for _ in range(2))
    exact = np.asarray(x, np.float64)
    centred = exact - exact.mean(-1, keepdims=True)
    scale = np.asarray(scale)
    bias = np.asarray(bias)
    layer = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias
    rms = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * scale
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    scale = jnp.asarray(scale)
    bias = jnp.asarray(bias)
    for y, expected in (
        (layer_norm(x, scale, bias, eps=1e-5), layer),
        (rms_norm(x, scale, eps=1e-5), rms),
    ):
        assert y.dtype == dtype
        np.testing.assert_allclose(
            np.asarray(y, np.float64), expected, rtol=tolerance, atol=tolerance
        )


def test_offset_norm_starts_as_the_plain_one():
    x = jnp.asarray(rng.standard_normal((2, 3, 8)), jnp.float32)
    params, y = run(Norm(NormConfig(kind="rms_offset")), x)
    assert not params["scale"].any()
    np.testing.assert_array_equal(y, run(Norm(NormConfig(kind="rms")), x)[1])


def test_a_layer_norm_without_bias_has_a_scale_alone():
    x = jax.random.normal(jax.random.key(0), (2, 3, 8)) + 1
    params, y = run(Norm(NormConfig(kind="layer_no_bias", eps=1e-5)), x)
    assert list(params) == ["scale"]
    np.testing.assert_array_equal(y, run(Norm(NormConfig(kind="layer", eps=1e-5)), x)[1])


@pytest.mark.parametrize("kind", ["plain", "gated"])
def test_feed_forward_equals_its_equation(kind):
    x = jnp.asarray(rng.standard_normal((2, 3, 8)), jnp.float32)
    params, y = run(
        FeedForward(
            MlpConfig(
                mlp_dim=12,
                gated=kind == "gated",
                activation="silu",
                initial=InitConfig(kind="fan_in"),
            )
        ),
        x,
    )
    silu = lambda z: z / (1 + np.exp(-z))  # noqa: E731
    up = np.asarray(x) @ params["up"]["kernel"]
    h = silu(np.asarray(x) @ params["gate"]["kernel"]) * up if kind == "gated" else silu(up)
    np.testing.assert_allclose(y, h @ params["down"]["kernel"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("period", [1, 2, 3])
def test_layers_stack_and_unstack_without_loss(period):
    side_by_side = {
        "stack": {f"layer_{i}": {"w": jnp.full((2,), i)} for i in range(6)},
        "other": jnp.ones(3),
    }
    stacked = stack_layers(side_by_side, period)
    assert stacked["stack"]["layers"]["block_0"]["w"].shape == (6 // period, 2)
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked), side_by_side)


def test_rolling_slots_hold_the_last_positions():
    for index in range(9):
        held = [int(p) for p in slots(4, jnp.int32(index))]
        assert sorted(p for p in held if p >= 0) == list(range(max(0, index - 3), index + 1))
        assert all(p < 0 or p % 4 == slot for slot, p in enumerate(held))


@pytest.mark.parametrize("length", [1, 3, 4, 7])
def test_prompt_lands_in_the_slots_that_are_read(length):
    cache = jnp.full((1, 1, 4, 1), -1.0)
    prompt = jnp.arange(length, dtype=jnp.float32)[None, :, None, None]
    written = np.asarray(append(cache, prompt, jnp.int32(0)))[0, 0, :, 0]
    for slot, position in enumerate(np.asarray(slots(4, jnp.int32(length - 1)))):
        if position >= 0:
            assert written[slot] == position


def test_a_frozen_token_gets_no_gradient_from_its_lookup():
    embed = TokenEmbed(EmbedConfig(vocab_size=4, width=2, d_model=2, frozen_token=1))
    ids = jnp.array([[0, 1, 1, 3]])
    params = embed.init(jax.random.key(0), ids)
    gradient = jax.grad(lambda params: embed.apply(params, ids).sum())(params)
    assert gradient["params"]["embedding"].sum(axis=1).tolist() == [2, 0, 0, 2]
