"""The rules of every shipped config cover its parameters exactly, and split what is large."""

import importlib
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from flaxformer_lite import registry
from flaxformer_lite.config import ExperimentConfig, MeshConfig, from_config_dict
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.sharding.mesh import build_mesh
from flaxformer_lite.sharding.parameters import param_specs
from tests.models.tiny import FAMILIES, POSITIONS, inputs_of, small

CONFIGS = sorted(path.stem for path in Path(__file__).parents[2].joinpath("configs").glob("*.py"))


def specs_of(cfg):
    model = registry.resolve("models", cfg.family).Model(cfg)
    inputs = inputs_of(cfg, jnp.ones((1, 2, 8) if cfg.head == "multiple_choice" else (1, 8), jnp.int32))
    shapes = jax.eval_shape(model.init, jax.random.key(0), **inputs)["params"]
    tensor = 1 if cfg.num_heads % 2 else 2  # GPT-2 XL has 25 heads
    mesh = build_mesh(MeshConfig(data=2, fsdp=4 // tensor, tensor=tensor))
    specs = param_specs(shapes, parameter_rules.rules(cfg), mesh)
    return jax.tree.leaves(shapes), jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, PartitionSpec))


@pytest.mark.parametrize("name", CONFIGS)
def test_shipped_config_splits_all_that_is_large(name):
    config = importlib.import_module(f"configs.{name}").get_config()
    cfg = from_config_dict(ExperimentConfig, config).model
    if not cfg.vocab_size:
        cfg = from_config_dict(type(cfg), {**config.model, "vocab_size": 512})
    leaves, specs = specs_of(cfg)
    whole = [leaf.size for leaf, spec in zip(leaves, specs, strict=True) if not any(spec)]
    assert sum(whole) < 0.02 * sum(math.prod(leaf.shape) for leaf in leaves) or sum(whole) < 2_000_000


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("position", POSITIONS)
def test_every_encoding_is_covered(family, position):
    cfg = small(family, vocab_size=64, position=registry.resolve_class("positions", position)())
    leaves, specs = specs_of(cfg)
    assert len(leaves) == len(specs)


@pytest.mark.parametrize("head", registry.resolve("models", "bert").Model.heads)
def test_every_head_is_covered(head):
    leaves, specs = specs_of(small("bert", vocab_size=64, head=head))
    assert len(leaves) == len(specs)


@pytest.mark.parametrize(
    "options",
    [
        {"mlp": "gated"},
        {"tie_embeddings": False},
        {"bias_at": ()},
        {"scan": True},
        {"num_kv_heads": 2},
        {"qk_norm": "rms"},
        {"residual": "parallel"},
        {"norm_at": ()},
    ],
)
def test_every_wiring_is_covered(options):
    leaves, specs = specs_of(small("gpt2", vocab_size=64, **options))
    assert len(leaves) == len(specs)
