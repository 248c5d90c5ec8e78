"""Products, matrices and caches in few bits: near those in floats, and unbiased."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from flax.traverse_util import flatten_dict

from flaxformer_lite import build_model, generate, init_cache
from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference import engine
from flaxformer_lite.nn.adapters.merge import dequantize_params
from flaxformer_lite.nn.functions import quantized, tuning
from flaxformer_lite.pretrained.place_params import place_params
from flaxformer_lite.pretrained.quantized_params import with_scheme
from tests.models import tiny

KERNELS = {"query": ((32, 4, 16), 1), "out": ((4, 16, 32), 2)}
quantize = jax.jit(quantized.quantize, static_argnums=(1, 2))
dequantize = jax.jit(quantized.dequantize, static_argnums=2)


def draw(*shapes):
    """Draws an array of each shape from the normal distribution, other ones for each."""
    numbers = np.random.default_rng(0)
    return [numbers.standard_normal(shape, np.float32) for shape in shapes]


def relative(got, due):
    return np.linalg.norm(np.ravel(got - due)) / np.linalg.norm(np.ravel(due))


@pytest.mark.parametrize(("recipe", "error"), [("int8", 0.012), ("fp8", 0.08)])
@pytest.mark.parametrize(("shape", "summed"), KERNELS.values(), ids=KERNELS)
def test_products_and_their_gradients_are_near_those_of_floats(recipe, error, shape, summed):
    x, kernel, d_y = draw((2, 24, *shape[:summed]), shape, (2, 24, *shape[summed:]))
    noise = np.random.default_rng(1).random((2, 24), np.float32)

    @jax.jit
    def both(x, kernel):
        due, due_pull = jax.vjp(lambda x, k: jnp.tensordot(x, k, summed), x, kernel)
        got, pull = jax.vjp(lambda x, k: quantized.matmul(x, k, noise, summed, recipe), x, kernel)
        return (due, *due_pull(d_y)), (got, *pull(d_y))

    for due, got in zip(*both(x, kernel), strict=True):
        assert relative(got, due) < error
    forward = relative(*[np.asarray(arrays[0]) for arrays in reversed(both(x, kernel))])
    assert forward > 1e-3  # rounded at all


def test_what_overflows_is_not_hidden():
    x = jnp.array([[1.0, jnp.nan], [1.0, jnp.inf], [0.0, 0.0]])
    y = quantized.matmul(x, jnp.ones((2, 3)), None, 1, "int8")
    assert not np.isfinite(y[:2]).any()
    assert not y[2].any()
    assert not quantized.matmul(x[2:], jnp.ones((2, 3)), None, 1, "fp8").any()


def test_noise_rounds_without_a_bias():
    x = jnp.array([[1.0, 0.25, -0.7]])
    noise = jax.random.uniform(jax.random.key(0), (4096, 1))
    codes, scale = quantized.to_codes(jnp.broadcast_to(x, (4096, 3)), (1,), jnp.int8, noise)
    mean = np.asarray(codes.astype(jnp.float32) * scale).mean(axis=0)
    np.testing.assert_allclose(mean, x[0], atol=3e-4)  # the nearest are 2e-3 off


@pytest.mark.parametrize("form", ["int8", "int4", "nf4"])
@pytest.mark.parametrize(("shape", "ins"), KERNELS.values(), ids=KERNELS)
def test_a_held_matrix_is_near_and_multiplies_as_restored(form, shape, ins):
    kernel, x = draw(shape, (2, 3, *shape[:ins]))
    codes, scale = quantize(kernel, ins, form)
    restored = dequantize(codes, scale, form)
    assert relative(restored, kernel) < (0.01 if form == "int8" else 0.12)
    held = codes.nbytes + scale.nbytes
    assert held < kernel.nbytes * (0.3 if form == "int8" else 0.26)
    again, _ = quantize(restored, ins, form)
    np.testing.assert_array_equal(again, codes)

    @jax.jit
    def both(x):
        due, due_pull = jax.vjp(lambda x: jnp.tensordot(x, restored, ins), x)
        got, pull = jax.vjp(lambda x: quantized.quantized_matmul(x, codes, scale, ins, form), x)
        return got, due, pull(got)[0], due_pull(due)[0]

    got, due, moved, due_moved = both(x)
    np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(moved, due_moved, rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [(), (1,), (1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize(("shape", "ins"), KERNELS.values(), ids=KERNELS)
def test_a_held_matrix_multiplies_codes(rows, shape, ins):
    """By hand: both are restored and multiplied. The gradient is that of the restored matrix."""
    kernel, x = draw(shape, (*rows, *shape[:ins]))
    codes, scale = quantize(kernel, ins, "int8")
    x_codes, x_scale = quantized.to_codes(x, tuple(range(len(rows), x.ndim)), jnp.int8)
    restored = dequantize(codes, scale, "int8")

    def product(x):
        return quantized.quantized_matmul(x, codes, scale, ins, "int8", True)

    got, pull = jax.vjp(product, x)
    np.testing.assert_allclose(
        got,
        jnp.tensordot(x_codes.astype(jnp.float32) * x_scale, restored, ins),
        rtol=1e-5,
        atol=1e-5,
    )
    _, due_pull = jax.vjp(lambda x: jnp.tensordot(x, restored, ins), x)
    np.testing.assert_allclose(pull(got)[0], due_pull(got)[0], rtol=1e-4, atol=1e-4)
    assert relative(got, jnp.tensordot(x, restored, ins)) < 0.02


@pytest.mark.parametrize(
    "count", [1, pytest.param(5, marks=pytest.mark.nightly), quantized.FEW_ROWS + 1]
)
@pytest.mark.parametrize(("shape", "ins"), KERNELS.values(), ids=KERNELS)
def test_rows_of_a_matrix_multiply_as_the_matrix(count, shape, ins):
    """In 8 bits as its codes do; in 16 nearly as the restored matrix."""
    kernel, x = draw(shape, (count, *shape[:ins]))
    x[0] *= 1e4
    codes, scale = quantize(kernel, ins, "int8")
    rows = jax.jit(quantized.make_output_rows)(codes, scale)
    multiply = jax.jit(quantized.multiply_rows, static_argnums=2)
    x_RI = x.reshape(count, -1)
    whole = jax.jit(lambda x: quantized.quantized_matmul(x, codes, scale, ins, "int8", True))
    due = np.asarray(whole(x)).reshape(count, -1)
    np.testing.assert_allclose(multiply(x_RI, rows, 8), due, rtol=1e-5)
    exact = np.tensordot(x, dequantize(codes, scale, "int8"), ins).reshape(count, -1)
    near = multiply(x_RI, rows, 16)
    top = np.abs(exact).max(axis=1, keepdims=True)
    np.testing.assert_allclose(near / top, exact / top, rtol=0, atol=1e-4)
    assert not multiply(np.zeros_like(x_RI), rows, 16).any()


@pytest.mark.parametrize(("shape", "ins"), KERNELS.values(), ids=KERNELS)
def test_a_stack_of_matrices_has_no_rows(shape, ins):
    stack = jax.eval_shape(lambda: quantized.quantize_stack(jnp.ones((2, *shape)), ins, "int8", 1))
    assert quantized.make_output_rows(*stack) is None


def test_a_model_in_int8_decodes_by_the_rows_of_its_matrices(monkeypatch):
    """As with floats for what the codes of layers and of the vocabulary stand for."""
    monkeypatch.setattr(tuning, "has_integer_tiles", lambda: True)
    plain, floats = tiny.built(tiny.small("llama", tie_embeddings=False))
    model, stored = with_scheme(plain, floats, "int8")
    model = model.tuned()
    params = place_params(model.cfg, stored)
    held = engine.add_output_rows(model, params)
    paths = set(flatten_dict(held, sep="/"))
    matrices = {path.removesuffix("/codes") for path in paths if path.endswith("/codes")}
    assert paths - set(flatten_dict(params, sep="/")) == {
        f"{path}/rows" for path in (*matrices, "lm_head")
    }
    plain, restored = dequantize_params(model, params)
    table = flatten_dict(held, sep="/")["lm_head/rows"]
    restored["lm_head"] = {"kernel": table.codes_OI.astype(jnp.float32) * table.scale_O[:, None]}
    ids = jnp.asarray(tiny.ids())
    rows = engine.PromptRows(np.zeros(len(ids), np.int32))
    got, _ = engine.prefill(model, held, ids, rows, None, slots=16)
    due, _ = engine.prefill(plain, restored, ids, rows, None, slots=16)
    np.testing.assert_allclose(got, due, rtol=0, atol=1e-4 * float(jnp.abs(due).max()))
    assert relative(engine.prefill(model, params, ids, rows, None, slots=16)[0], due) > 1e-4
    assert engine.add_output_rows(plain, restored) is restored
    monkeypatch.setattr(tuning, "has_integer_tiles", lambda: False)  # not measured there
    assert engine.add_output_rows(model, params) is params
    asked = build_model(model.cfg, matmul="int8").tuned()
    assert engine.add_output_rows(asked, params) is not params
    assert generate(model, params, ids[:1, :4], max_new_tokens=4).shape == (1, 8)


def test_nf4_is_that_of_qwix():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        theirs = qwix.dequantize(qwix.quantize(jnp.linspace(-1, 1, 999), "nf4"))
    np.testing.assert_allclose(np.unique(theirs), quantized.NF4, rtol=1e-6)


def test_a_matrix_of_odd_sizes_is_refused():
    with pytest.raises(ConfigError, match=r"multiple of 4.* has 6; use int8"):
        quantized.quantize(jnp.ones((6, 5)), 1, "int4")


@pytest.mark.nightly
def test_an_int8_cache_decodes_as_a_pass_over_the_row():
    model, params = tiny.built(tiny.small("llama", windows=(0, 4)))
    small = build_model(model.cfg, cache="int8")
    ids = tiny.ids()
    cache = init_cache(small.cfg, *ids.shape)
    exact = init_cache(model.cfg, *ids.shape)
    assert sum(x.nbytes for x in jax.tree.leaves(cache)) < 0.51 * sum(
        x.nbytes for x in jax.tree.leaves(exact)
    )
    due = tiny.logits_of(model, params, input_ids=ids)

    @jax.jit
    def step(cache, start):
        one = jax.lax.dynamic_slice_in_dim(ids, start, 1, axis=1)
        return small.apply({"params": params}, one, cache=cache, cache_index=start)

    for start in range(ids.shape[1]):
        got = step(cache, jnp.int32(start))
        cache = got.cache
    assert 1e-5 < relative(got.logits[:, -1], due[:, -1]) < 0.03
    written = generate(small, params, ids[:1, :4], max_new_tokens=4, num_beams=2)
    assert written.shape == (1, 8)


def test_what_has_another_cache_is_refused():
    cfg = tiny.small("qwen3_next", cache="int8")
    with pytest.raises(ConfigError, match=r"cache='int8': .*computes.*set cache="):
        init_cache(cfg, 1, 4)


def test_devices_that_split_a_sum_share_its_scales():
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("tensor",))
    (x,) = draw((8, 64))
    split = jax.device_put(x, jax.NamedSharding(mesh, jax.P(None, "tensor")))
    to_codes = jax.jit(lambda x: quantized.to_codes(x, (1,), jnp.int8))
    for one, many in zip(to_codes(x), to_codes(split), strict=True):
        np.testing.assert_array_equal(one, many)
