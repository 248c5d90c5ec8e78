"""Every mixer in its folder: width kept, no look into the future, a cache that computes the same,
rules for its paths."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from flaxformer_lite import registry
from flaxformer_lite.config import LayerConfig, StackConfig, plugin_name
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.mixers.attention import AttentionConfig
from flaxformer_lite.nn.modules.cache import init_stack_cache
from flaxformer_lite.nn.modules.stack import Stack
from flaxformer_lite.nn.positions.rope import Rope
from tests.marks import daily

OPTIONS = {  # of mixers that need some
    "attention": {"num_heads": 4, "num_kv_heads": 2, "gate": True},
    "gated_delta": {"key_heads": 2, "value_heads": 4, "key_dim": 6, "value_dim": 8},
    "latent_attention": {
        "kv_rank": 10,
        "q_rank": 12,
        "content_dim": 6,
        "rotary_dim": 4,
        "value_dim": 5,
        "attention": AttentionConfig(
            num_heads=4, bias=("query", "key", "out"), position=Rope(layout="interleaved")
        ),
    },
    "shared_keys": {
        "keys": "kept",
        "values_are_keys": True,
        "value_norm": "rms_no_affine",
        "attention": AttentionConfig(num_heads=4, num_kv_heads=2, position=Rope()),
    },
    "disentangled": {"attention": AttentionConfig(num_heads=4), "max_distance": 3},
}
RECORDS = [
    registry.resolve_class("mixers", name)(**OPTIONS.get(name, {}))
    for name in registry.available("mixers")
]
# test_recurrent_attention.py and test_disentangled.py have the others
RECORDS = [record for record in RECORDS if not (record.reads_source or record.both_ways)]
B = 2
T = 6
D = 32


# Kinds of attention have tests in other files.
DAILY = [record for record in RECORDS if plugin_name(record) not in ("attention", "disentangled")]


@pytest.fixture(params=daily(RECORDS, DAILY), ids=plugin_name, scope="module")
def stack(request):
    record = StackConfig(
        num_layers=1, pattern=(LayerConfig(mixer=request.param, feed_forward=MlpConfig()),)
    )
    module = Stack(record, causal=True)
    x = jax.random.normal(jax.random.key(0), (B, T, D))
    return record, module, jax.jit(module.init)(jax.random.key(1), x), x


def test_the_width_stays_and_the_past_does_not_see_the_future(stack):
    _, module, variables, x = stack
    apply = jax.jit(module.apply)
    y = apply(variables, x)
    assert y.shape == x.shape and y.dtype == x.dtype and not np.allclose(y, x)
    changed = apply(variables, x.at[:, 4:].add(1.0))
    np.testing.assert_allclose(changed[:, :4], y[:, :4], rtol=0, atol=1e-6)
    assert not np.allclose(changed[:, 4:], y[:, 4:])


def test_chunks_with_a_cache_equal_the_whole(stack):
    record, module, variables, x = stack

    @jax.jit
    def both_ways(x):
        cache = init_stack_cache(record, B, T, D)
        first, cache = module.apply(variables, x[:, :4], cache=cache)
        rest, _ = module.apply(variables, x[:, 4:], cache=cache)
        return jnp.concatenate([first, rest], axis=1), module.apply(variables, x)

    np.testing.assert_allclose(*both_ways(x), rtol=1e-5, atol=1e-5)


def test_rules_match_the_paths(stack):
    record, _, variables, _ = stack
    leaves = flatten_dict(variables["params"], sep="/")
    for pattern, axes in record.pattern[0].mixer.partition_rules():
        found = [path for path in leaves if re.search(pattern, path)]
        assert found and all(len(axes) <= leaves[path].ndim for path in found), pattern
