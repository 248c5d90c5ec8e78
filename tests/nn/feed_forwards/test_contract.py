"""Every feed-forward in its folder: one vector in, one of the same width out, each token by itself,
rules for its paths."""

import re

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from flaxformer_lite import registry
from flaxformer_lite.config import Execution
from flaxformer_lite.nn.feed_forwards.capacity_moe import CapacityMoeConfig

RECORDS = [
    registry.resolve_class("feed_forwards", name)() for name in registry.available("feed_forwards")
]


@pytest.fixture(scope="module", params=RECORDS, ids=lambda record: record.name)
def layer(request):
    x = jax.random.normal(jax.random.key(0), (2, 5, 16))
    module = request.param.module(Execution(), name=request.param.name)
    return request.param, module, jax.jit(module.init)(jax.random.key(1), x), x


def test_the_width_stays(layer):
    _, module, variables, x = layer
    y = jax.jit(module.apply)(variables, x)
    assert y.shape == x.shape and y.dtype == x.dtype and not np.allclose(y, x)


def test_each_token_is_treated_by_itself(layer):
    record, module, variables, x = layer
    if not record.reads_one_token:
        assert isinstance(record, CapacityMoeConfig)  # whose tokens share the room of experts
        return
    apply = jax.jit(module.apply)
    changed = apply(variables, x.at[:, 3].add(1.0))
    same = np.arange(5) != 3
    np.testing.assert_array_equal(changed[:, same], apply(variables, x)[:, same])


def test_rules_match_the_paths(layer):
    record, _, variables, _ = layer
    paths = [f"{record.name}/{path}" for path in flatten_dict(variables["params"], sep="/")]
    for pattern, axes in record.partition_rules():
        found = [path for path in paths if re.search(pattern, path)]
        assert found, pattern
        for path in found:
            assert len(axes) <= flatten_dict({record.name: variables["params"]}, sep="/")[path].ndim
