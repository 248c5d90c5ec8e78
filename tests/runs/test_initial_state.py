"""A new state has one maker, for random and for published parameters."""

import jax
import numpy as np

from flaxformer_lite import sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.runs.start import warm_start
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.training import program
from tests.training import tiny_runs


def test_published_parameters_replace_the_random_ones_and_nothing_else(tmp_path, monkeypatch):
    cfg = program.with_vocabulary(tiny_runs.config(tmp_path, mesh=MeshConfig(data=1)), 300)
    built = program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))

    def init_from_pretrained(of, folder):
        assert of is built and folder == "weights"
        return warm_start.Published(
            (), lambda state: state.replace(params=jax.tree.map(lambda x: x + 1, state.params))
        )

    monkeypatch.setattr(warm_start, "init_from_pretrained", init_from_pretrained)
    random = initial_state(built)
    published = initial_state(built, "weights")
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a + 1, b), random.params, published.params
    )
    jax.tree.map(np.testing.assert_array_equal, random.opt_state, published.opt_state)
    assert int(random.step) == int(published.step) == 0
