"""Impossible configs are refused while the program is built, before anything is compiled."""

import collections
import dataclasses

import jax
import pytest

from flaxformer_lite import sharding
from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.models import electra
from flaxformer_lite.nn.adapters.lora import LoraConfig
from flaxformer_lite.objectives.text.replaced_tokens import ReplacedTokens
from flaxformer_lite.training import program
from tests.contrib.plan.test_planner import config
from tests.jaxprs import equations
from tests.training import tiny_runs


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (
            {"data": 2, "context": 3},
            r"mesh.context=3: input_ids has 32 positions.*try data.length=33",
        ),
        (
            {"data": 2, "tensor": 4},
            r"attention/.*a dimension of 2.*not divide.*mesh.tensor=4",
        ),
    ],
)
def test_what_does_not_split_is_refused(tmp_path, mesh, message):
    cfg = tiny_runs.config(tmp_path, mesh=MeshConfig(**mesh))
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=384))
    with pytest.raises(ConfigError, match=message):
        program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))


@pytest.mark.parametrize("name", ["llama_tiny", "moe_tiny"])
def test_every_weight_that_data_splits_is_gathered_where_it_is_used(name):
    cfg = config(name)
    mesh = MeshConfig(data=2, fsdp=2, shard_over_data=True)
    built = program.build(
        dataclasses.replace(cfg, mesh=mesh), sharding.build_mesh(mesh), dummy.example(cfg)
    )
    split = collections.Counter()
    for leaf in jax.tree.leaves(built.target.params):
        if sharding.DATA in str(leaf.sharding.spec):
            split[leaf.shape, leaf.sharding.spec] += 1
    constrained = collections.Counter()
    for equation in equations(built.train_step.trace(built.target, built.batch).jaxpr.jaxpr):
        if equation.primitive.name == "sharding_constraint":
            place = equation.params["sharding"].spec
            constrained[equation.invars[0].aval.shape, place] += 1
    assert len(split) > 5
    for weight, count in split.items():
        assert constrained[weight] == 2 * count  # and its gradient


def test_an_adapter_beside_a_generator_that_would_never_learn_is_refused(tmp_path):
    model = electra.config("tiny", head="pretraining", vocab_size=384, adapter=LoraConfig(rank=2))
    cfg = tiny_runs.config(tmp_path, model=model, objective=ReplacedTokens())
    with pytest.raises(ConfigError, match=r"model\.adapter=.*generator"):
        program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_scanned_layers_trace_to_as_many_operations_at_any_depth(tmp_path, family):
    counts = []
    for depth in (2, 8):
        cfg = tiny_runs.config(tmp_path, family)
        layers = {
            side: depth for side in ("encoder_layers", "decoder_layers") if getattr(cfg.model, side)
        }
        cfg = dataclasses.replace(
            cfg, model=dataclasses.replace(cfg.model, vocab_size=384, scan=True, **layers)
        )
        built = program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))
        traced = built.train_step.trace(built.target, built.batch).jaxpr.jaxpr
        counts.append(len(list(equations(traced))))
    assert counts[0] == counts[1]


def test_frozen_matrices_count_no_gradients():
    cfg = config("llama_tiny")
    model = dataclasses.replace(cfg.model, adapter=LoraConfig(rank=1))
    frozen = dataclasses.replace(
        cfg, model=model, optimizer=dataclasses.replace(cfg.optimizer, freeze=(r"^(?!.*lora)",))
    )
    for each in (cfg, frozen):
        built = program.build(each, sharding.build_mesh(each.mesh), dummy.example(each))
        assert 0.9 < program.executed_flops(built) / built.flops_per_step < 1.1
