"""The state made leaf by leaf is the one that a single program makes, on any mesh, and compiles as
little for any depth."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import sharding
from flaxformer_lite.analysis import recompiles
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.runs.start import initial_state as start
from flaxformer_lite.runs.start.initial_state import init_per_leaf, initial_state
from flaxformer_lite.training import program
from tests.marks import daily
from tests.training import tiny_runs


@pytest.fixture(autouse=True)
def as_in_a_run(monkeypatch):
    monkeypatch.setattr(start, "init_per_leaf", init_per_leaf)


def build(folder, family, mesh=None, **model):
    cfg = tiny_runs.config(folder, family, mesh=MeshConfig(**(mesh or {"data": 1})))
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=384, **model))
    return program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))


MODELS = [
    ("gpt2", {"decoder_layers": 2, "init": "normal_residual"}),
    ("bert", {"encoder_layers": 2, "scan": True, "init": "xavier"}),
    ("t5", {"encoder_layers": 2, "decoder_layers": 2}),
]


@pytest.mark.parametrize(("family", "model"), daily(MODELS, MODELS[:1]))
def test_the_leaves_are_those_of_one_program(tmp_path, family, model):
    built = build(tmp_path, family, {"data": 2, "fsdp": 2, "tensor": 2}, **model)
    ids = {name: jnp.zeros((1, *x.shape[1:]), x.dtype) for name, x in built.batch["inputs"].items()}
    key, _ = jax.random.split(jax.random.key(built.cfg.seed))
    due = jax.jit(lambda: built.model.init(key, **ids, method="features")["params"])()
    state = initial_state(built)
    # Compiled with another optimisation level, which contracts other products and sums.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7)
    jax.tree.map(close, state.params, due)
    for leaf, target in zip(jax.tree.leaves(state), jax.tree.leaves(built.target), strict=True):
        assert (leaf.shape, leaf.dtype) == (target.shape, target.dtype)
        assert leaf.sharding == target.sharding
    assert all(not leaf.any() for leaf in jax.tree.leaves((state.step, state.opt_state)))


@pytest.mark.nightly
@pytest.mark.parametrize("scan", [False, True])
def test_a_deeper_model_compiles_no_more_programs(tmp_path, scan):
    made = []
    for layers in (2, 4):
        built = build(tmp_path, "gpt2", decoder_layers=layers, scan=scan)
        before = recompiles.total()
        initial_state(built)
        made.append(recompiles.total() - before)
    assert made[0] == made[1] <= 16


def made_of(create, **options):
    traced, shapes = jax.make_jaxpr(create, return_shape=True)()
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return init_per_leaf(traced, jax.tree.map(lambda _: here, shapes), **options)


def test_leaves_that_share_arithmetic_and_leaves_that_are_functions_of_drawn_ones():
    def create():
        drawn = jax.random.normal(jax.random.fold_in(jax.random.key(0), 1), (4,))
        bent = {"twice": 2 * drawn, "bent": jax.nn.relu(drawn)}
        return {"drawn": drawn, **bent, "three": 3, "zeros": jnp.zeros(4)}

    jax.tree.map(np.testing.assert_array_equal, made_of(create), create())


def test_omitted_leaves_are_not_drawn():
    def create():
        key = jax.random.key(0)
        drawn = jax.random.normal(key, (4,))
        return {"drawn": drawn, "large": jax.random.normal(key, (1 << 62,)), "twice": 2 * drawn}

    made = made_of(create, omitted={1})
    assert made["large"] is None
    np.testing.assert_array_equal(made["twice"], 2 * made["drawn"])
