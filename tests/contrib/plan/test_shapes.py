"""The programs of large configs on a TPU, traced and never compiled: they hold no array of all
pairs of positions."""

import dataclasses

import jax
from jax.extend.core import jaxprs_in_params

from flaxformer_lite import sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.sharding.activations import MeshSharding
from flaxformer_lite.training import program
from tests.contrib.plan.test_planner import config


def arrays(jaxpr, kernels):
    """Every array that a traced program makes, kernels' insides apart; the kernels by name."""
    for eqn in jaxpr.eqns:
        yield from ((eqn.primitive.name, v.aval.shape) for v in eqn.outvars)
        if eqn.primitive.name == "pallas_call":
            known = (eqn.params.get("name"), eqn.params.get("name_and_src_info"))
            named = f"{eqn.source_info.name_stack} {known}"
            kernels.add("splash" if "splash" in named else named)
            continue
        for inner in jaxprs_in_params(eqn.params):
            yield from arrays(inner, kernels)


def test_no_array_of_all_pairs(monkeypatch):
    cfg = config("gpt2_xl")
    train = dataclasses.replace(cfg.train, batch_size=2)
    cfg = dataclasses.replace(cfg, mesh=MeshConfig(data=1), train=train)
    monkeypatch.setattr(MeshSharding, "platform", "tpu")  # before a mesh remembers its own
    built = program.build(cfg, sharding.build_mesh(cfg.mesh, jax.devices()[:1]), dummy.example(cfg))
    kernels = set()
    made = list(arrays(built.train_step.trace(built.target, built.batch).jaxpr.jaxpr, kernels))
    length = cfg.data.length
    assert [found for found in made if found[1].count(length) > 1] == []
    assert kernels == {"splash"}
