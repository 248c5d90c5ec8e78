"""The rules of every shipped config cover its parameters exactly, and split what is large."""

import importlib
import math
import re
from pathlib import Path

import jax
import pytest
from flax.traverse_util import unflatten_dict
from jax.sharding import PartitionSpec

from flaxformer_lite import registry
from flaxformer_lite.config import ExperimentConfig, MeshConfig, from_config_dict
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.sharding.mesh import build_mesh
from flaxformer_lite.sharding.parameters import param_specs, path_of
from tests.marks import daily
from tests.models.tiny import PAIRS, small

CONFIGS = sorted(path.stem for path in Path(__file__).parents[2].joinpath("configs").glob("*.py"))
# Encoders, decoders, and both; untied and factorised tables; two kinds of experts.
DAILY = ("electra_tiny", "gpt_oss_20b", "llama_7b", "moe_tiny", "switch_base", "t5_v1_1")
MATRIX = re.compile(r"^(encoder|decoder)/.*kernel$|token_embed/embedding$")  # heads stay whole


def specs_of(cfg):
    shapes = unflatten_dict(
        parameter_shapes(registry.resolve("models", cfg.family).Model(cfg)), sep="/"
    )
    tensor = 1 if cfg.num_heads % 2 else 2  # GPT-2 XL has 25 heads
    mesh = build_mesh(MeshConfig(data=2, fsdp=4 // tensor, tensor=tensor))
    specs = param_specs(shapes, parameter_rules.rules(cfg), mesh)
    paths = [path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(shapes)]
    specs = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
    return list(zip(paths, jax.tree.leaves(shapes), specs, strict=True))


def unsplit_matrices(cfg):
    """Paths of the weights of matrix products and lookups by token that no axis of the mesh
    splits."""
    return [path for path, _, spec in specs_of(cfg) if MATRIX.search(path) and not any(spec)]


@pytest.mark.parametrize("name", daily(CONFIGS, DAILY))
def test_shipped_config_splits_all_that_is_large(name):
    config = importlib.import_module(f"configs.{name}").get_config()
    cfg = from_config_dict(ExperimentConfig, config).model
    if not cfg.vocab_size:
        cfg = from_config_dict(type(cfg), {**config.model, "vocab_size": 512})
    found = specs_of(cfg)
    whole = [leaf.size for _, leaf, spec in found if not any(spec)]
    assert (
        sum(whole) < 0.02 * sum(math.prod(leaf.shape) for _, leaf, _ in found)
        or sum(whole) < 2_000_000
    )


@pytest.mark.parametrize(("family", "position"), PAIRS)
def test_every_encoding_is_covered(family, position):
    cfg = small(
        family, vocab_size=64, position=registry.resolve_class("positions", position)(), number=1
    )
    assert not unsplit_matrices(cfg)


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
    assert not unsplit_matrices(small("gpt2", vocab_size=64, **options, number=1))


SPLIT = {
    "token_embed/embedding": (("tensor", "fsdp"), None),
    "lm_head/kernel": (("tensor", "fsdp"), None),
    "decoder/layer_0/attention/query/kernel": ("fsdp", "tensor", None),
    "decoder/layer_0/attention/out/kernel": ("tensor", None, "fsdp"),
    "decoder/layer_0/mlp/up/kernel": ("fsdp", "tensor"),
    "decoder/layer_0/mlp/down/kernel": ("tensor", "fsdp"),
}


def test_each_matrix_is_split_on_its_own_axes():
    """One split on another computes the same, and exchanges more."""
    specs = {path: tuple(spec) for path, _, spec in specs_of(small("llama", vocab_size=64))}
    assert {path: specs[path] for path in SPLIT} == SPLIT
