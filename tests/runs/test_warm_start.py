"""Runs that begin with published weights."""

import dataclasses

import jax
import numpy as np
import pytest

from flaxformer_lite import build_model, load_pretrained, save_pretrained, unstack_layers
from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.runs.start.setup import prepare_experiment
from tests.marks import daily
from tests.training import tiny_runs

ORDER = ("vocab_size", "d_model", "norm_eps", "max_length")


@pytest.fixture(scope="module", params=daily(["gpt2", "bert", "t5"], ["gpt2"]))
def run(request, tmp_path_factory):
    """A config, and a directory of weights that fit it."""
    folder = tmp_path_factory.mktemp(request.param)
    cfg = tiny_runs.config(folder, request.param)
    built = prepare_experiment(cfg).program
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda x: draw.standard_normal(x.shape, x.dtype), built.target.params)
    save_pretrained(folder / "published", built.model, params)
    return dataclasses.replace(
        cfg, train=dataclasses.replace(cfg.train, init_from=str(folder / "published"))
    )


# Stacking and splitting do not interact but in the axis that leads a stack's sharding, which the
# second one has.
WAYS = [(MeshConfig(data=1), False), (MeshConfig(data=2, fsdp=2, tensor=2), True)]


@pytest.mark.parametrize(("mesh", "scan"), daily(WAYS, WAYS[1:]), ids=["one", "split"])
def test_a_run_begins_with_the_weights_of_its_directory(run, mesh, scan):
    model = dataclasses.replace(run.model, scan=scan)
    experiment = prepare_experiment(dataclasses.replace(run, mesh=mesh, model=model))
    state = initial_state(experiment.program, run.train.init_from)
    due = load_pretrained(run.train.init_from)[1]
    params = unstack_layers(jax.device_get(state.params))
    jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(due))
    leaves, targets = map(jax.tree.leaves, (state, experiment.program.target))
    assert [x.sharding for x in leaves] == [x.sharding for x in targets]
    assert not any(x.any() for x in jax.tree.leaves((state.step, state.opt_state)))


EXPERTS = [(MeshConfig(data=1), False), (MeshConfig(data=2, expert=2), True)]


@pytest.mark.parametrize(("mesh", "scan"), daily(EXPERTS, EXPERTS[:1]), ids=["one", "split"])
def test_experts_begin_as_copies_of_the_dense_layer(tmp_path, mesh, scan):
    """Upcycling: at first the model computes what the dense one does."""
    dense = tiny_runs.config(tmp_path, "gpt2")
    built = prepare_experiment(dense).program
    draw = np.random.default_rng(0)
    shapes = built.target.params
    params = jax.tree.map(lambda x: draw.normal(0, 0.3, x.shape).astype("float32"), shapes)
    save_pretrained(tmp_path / "published", built.model, params)
    train = dataclasses.replace(dense.train, init_from=str(tmp_path / "published"))
    moe = dataclasses.replace(dense.model, feed_forward=MoeConfig(num_experts=4), scan=scan)
    experiment = prepare_experiment(dataclasses.replace(dense, train=train, model=moe, mesh=mesh))
    state = initial_state(experiment.program, train.init_from)
    ids = np.arange(16, dtype=np.int32).reshape(2, 8)
    due = jax.jit(built.model.apply)({"params": params}, ids).logits
    model = build_model(experiment.program.model.cfg)
    ours = jax.jit(model.apply)({"params": jax.device_get(state.params)}, ids).logits
    np.testing.assert_allclose(ours, due, rtol=1e-4, atol=1e-4)


def test_weights_of_another_model_are_refused_with_all_that_differs(run):
    sizes = {"d_model": 32, "norm_eps": 1e-3, "vocab_size": 512}
    sizes |= {"max_length": 64} if run.model.has_position_table else {}
    model = dataclasses.replace(run.model, **sizes)
    other = prepare_experiment(dataclasses.replace(run, model=model))
    said = r"train.init_from=.*its vocab_size is \d+, the config's 512"
    with pytest.raises(ConfigError, match=said) as caught:
        initial_state(other.program, other.cfg.train.init_from)
    assert "its d_model is 16, the config's 32;" in str(caught.value)
    flags = str(caught.value).split("; set ")[1].rstrip(".").split()
    names = [f"--config.model.{name}" for name in sorted(sizes, key=ORDER.index)]
    assert [flag.split("=")[0] for flag in flags] == names


@pytest.mark.parametrize("run", ["gpt2"], indirect=True)
def test_no_weights(run, tmp_path):
    other = dataclasses.replace(run, train=dataclasses.replace(run.train, init_from=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"train.init_from: .*no config.json"):
        initial_state(prepare_experiment(other).program, other.train.init_from)
