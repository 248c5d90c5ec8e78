import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import Attention, AttentionConfig, Execution, FeedForward, Rope, sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.functions import tuning
from flaxformer_lite.nn.functions.device_ops import name_arrays
from flaxformer_lite.nn.functions.sharding import ActivationSharding, place_execution
from flaxformer_lite.nn.functions.tuning import (
    OPTIONS,
    compiler_options,
    compute_gradient_once,
    compute_once,
)
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.training import program
from tests.nn.attentions.cases import On
from tests.training import tiny_runs

TOKENS = 256
WIDTH = 64
HIDDEN = 1024
LAYERS = 4


def gated(inputs):
    gate, up = inputs
    return jax.nn.silu(gate) * up


def plain_matmul(make, inputs, kernel):
    return make(inputs) @ kernel


def net(matmul):
    def apply(weights, x):
        for up, gate, down in weights:
            x = x + matmul(gated, (x @ up, x @ gate), down)
        return jnp.square(x).sum()

    return apply


@pytest.fixture
def case():
    keys = iter(jax.random.split(jax.random.key(0), 3 * LAYERS + 1))
    shapes = ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    weights = [
        [0.1 * jax.random.normal(next(keys), shape) for shape in shapes] for _ in range(LAYERS)
    ]
    return weights, jax.random.normal(next(keys), (2, TOKENS // 2, WIDTH))


PLAIN = jax.grad(net(plain_matmul))
TUNED = jax.grad(net(tuning.recompute_matmul))


@pytest.mark.nightly
def test_recomputed_gradients_are_those_of_the_product(case):
    for got, want in zip(jax.tree.leaves(TUNED(*case)), jax.tree.leaves(PLAIN(*case)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_what_is_recomputed_is_not_kept(case):
    def held(gradients):
        return jax.jit(gradients).lower(*case).compile().memory_analysis().temp_size_in_bytes

    assert held(TUNED) < held(PLAIN) - (LAYERS - 1) * 4 * TOKENS * HIDDEN


def test_products_of_matrices_and_their_gradients_transpose_only_matrices():
    up, down, x = (
        jax.random.normal(jax.random.key(n), shape)
        for n, shape in enumerate(((32, 8, 16), (8, 16, 32), (4, 8, 32)))
    )

    def loss(product, kernels, x):
        return jnp.square(product(jnp.tanh, product(None, x, kernels[0], 1), kernels[1], 2)).sum()

    def plain(make, x, kernel, summed):
        return jnp.tensordot(make(x) if make else x, kernel, summed)

    def tuned(make, x, kernel, summed):
        return tuning.matmul_of_matrices(x, kernel, summed, make)

    (got, got_text), (want, want_text) = (
        (compiled((up, down), x), compiled.as_text())
        for product in (tuned, plain)
        for compiled in [
            jax.jit(jax.grad(functools.partial(loss, product), (0, 1)))
            .lower((up, down), x)
            .compile()
        ]
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
    over_rows = re.compile(r" dot\(.*lhs_contracting_dims=\{0\}, rhs_contracting_dims=\{0\}")
    for text, is_plain in ((got_text, False), (want_text, True)):
        transposed = re.findall(r"\[([\d,]+)\]\S* transpose\(", text)
        assert any(shape.count(",") > 1 for shape in transposed) is is_plain
    assert not over_rows.search(got_text)  # a product that XLA has no fast kernel for


@pytest.mark.parametrize("p", [0.9, 0.3, 1.0])
def test_random_choices_in_one_kernel_are_those_of_jax(p):
    key = jax.random.key(7)
    shape = (3, 5, 7)
    draw = functools.partial(tuning.bernoulli, p=p, shape=shape)
    tuned = jax.jit(functools.partial(draw, sharding=ActivationSharding(tuned=True)))
    np.testing.assert_array_equal(tuned(key), jax.random.bernoulli(key, p, shape))
    assert "while" not in tuned.lower(key).compile().as_text()
    other = jax.random.key(7, impl="rbg")
    want = jax.random.bernoulli(other, p, shape)
    np.testing.assert_array_equal(draw(other, sharding=ActivationSharding(tuned=True)), want)


def test_what_is_scheduled_after_a_number_depends_on_it_and_is_unchanged():
    x = jnp.arange(3.0)
    done = jnp.ones(2)
    np.testing.assert_array_equal(tuning.schedule_after([done], x), x)
    assert "ne" not in str(jax.make_jaxpr(lambda d: tuning.schedule_after([], x))(done))
    assert jnp.isnan(tuning.schedule_after([done.at[0].set(jnp.nan)], x)).all()


def built(folder, family, tuned, devices=1):
    cfg = tiny_runs.config(
        folder, family, train={"cpu_tuning": tuned}, mesh=MeshConfig(data=devices)
    )
    model = dataclasses.replace(cfg.model, dropout=0.0, vocab_size=96)
    cfg = dataclasses.replace(cfg, model=model)
    return program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg)), dummy.batch(cfg)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["gpt2", pytest.param("t5", marks=pytest.mark.nightly)])
def test_plain_equals_tuned(tmp_path, family):
    """Loss, norm of the gradients and updated parameters of a step."""
    (plain, batch), (tuned, _) = (built(tmp_path, family, switch) for switch in (False, True))
    texts = [str(jax.make_jaxpr(run.train_step)(run.target, run.batch)) for run in (plain, tuned)]
    assert (
        "recomputed" not in texts[0]
        and "is_finite" not in texts[0]
        and len(texts[0]) != len(texts[1])
    )
    results = [run.train_step(initial_state(run), batch) for run in (plain, tuned)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *results)


@pytest.mark.nightly
def test_a_mesh_is_not_tuned(tmp_path):
    """Several devices run the plain program, and so do steps written by hand; the switch is for one
    CPU."""
    texts = [
        str(jax.make_jaxpr(run.train_step)(run.target, run.batch)).count("custom_vjp")
        for run, _ in (
            built(tmp_path, "gpt2", True),
            built(tmp_path, "gpt2", True, 2),
            built(tmp_path, "gpt2", False, 2),
        )
    ]
    assert texts[1] == texts[2]


@pytest.mark.parametrize("once, value", [(compute_gradient_once, False), (compute_once, True)])
def test_what_is_computed_once_changes_no_number_in_either_mode(once, value):
    def wave(inputs):
        return jnp.sum(jnp.sin(inputs[0]) * inputs[1])

    inputs = jnp.arange(3.0), jnp.arange(1.0, 4.0)
    behind = lambda inputs: wave(once(inputs, On()))  # noqa: E731
    assert behind(inputs) == wave(inputs)
    for mode in (jax.jacfwd, jax.grad):
        for own, plain in zip(mode(behind)(inputs), mode(wave)(inputs), strict=True):
            assert (own == plain).all()
    assert "optimization_barrier" in str(jax.make_jaxpr(jax.grad(behind))(inputs))
    assert ("optimization_barrier" in str(jax.make_jaxpr(behind)(inputs))) == value
    assert once(inputs, On(device_kind="TPU v5 lite")) is inputs


@pytest.mark.parametrize(
    "module",
    [
        Attention(
            AttentionConfig(num_heads=2, head_dim=6, position=Rope(), bias=("query",)),
            Execution(attention="dense"),
        ),
        FeedForward(MlpConfig(mlp_dim=12, gated=True)),
    ],
)
def test_a_layer_tuned_for_tpus_has_the_same_values_and_gradients(module):
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    params = module.init(jax.random.key(1), x)
    tuned = module.clone(execution=place_execution(module.execution, On("tpu"), None))

    def run(module):
        return jax.jit(
            jax.value_and_grad(
                lambda params, x: jnp.sin(module.apply(params, x)).sum(), argnums=(0, 1)
            )
        )

    wanted = run(module)(params, x)
    found = run(tuned)(params, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), wanted, found)
    assert "optimization_barrier" in str(jax.make_jaxpr(tuned.apply)(params, x))


def test_the_compiler_is_told_what_the_environment_does_not_tell_it(monkeypatch):
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    assert compiler_options("TPU v4") is None and compiler_options("cpu") is None
    assert compiler_options("TPU v5") == OPTIONS["TPU v5"]
    assert compiler_options("TPU v6 lite") == OPTIONS["TPU v6 lite"]
    name = "xla_tpu_enable_async_collective_fusion"  # also the start of two other names
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--xla_other=1 --{name}=false")
    assert compiler_options("TPU v5").keys() == OPTIONS["TPU v5"].keys() - {name}


def test_named_arrays_are_kept_by_a_policy_and_else_recomputed():
    def wave(x):
        return jnp.sum(name_arrays("wave", jnp.sin(x)) ** 2)

    def sines(keep):
        remat = jax.checkpoint(wave, policy=jax.checkpoint_policies.save_only_these_names(keep))
        return str(jax.make_jaxpr(jax.grad(remat))(jnp.ones(3))).count("= sin ")

    assert sines("wave") == 1 and sines("other") == 2
    one, two = name_arrays("pair", jnp.ones(2), jnp.zeros(2))
    assert one.sum() == 2 and two.sum() == 0
