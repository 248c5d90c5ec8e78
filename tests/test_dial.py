"""The page `dial`: every depth is a sound experiment whose sizes grow with it."""

import importlib

import jax
import pytest

from flaxformer_lite.config import ConfigError, ExperimentConfig, from_config_dict
from flaxformer_lite.data import dummy
from flaxformer_lite.training import bound_models, state

dial = importlib.import_module("configs.dial")


def experiment(depth):
    return from_config_dict(ExperimentConfig, dial.get_config(f"depth={depth}"))


def test_every_depth_is_sound_and_larger_than_the_one_before():
    before = None
    for depth in [*range(2, 41), 64, dial.DEEPEST]:
        cfg = experiment(depth)
        rows = cfg.train.batch_size
        assert rows & (rows - 1) == 0 and cfg.data.length % 128 == 0
        assert cfg.model.num_heads * cfg.model.head_dim == cfg.model.d_model == 64 * depth
        if before:
            assert cfg.train.steps * rows * cfg.data.length > before[0]
            assert cfg.optimizer.learning_rate <= before[1]
        before = (cfg.train.steps * rows * cfg.data.length, cfg.optimizer.learning_rate)


@pytest.mark.parametrize("depth", [2, 12])
def test_twenty_tokens_a_parameter(depth):
    cfg = experiment(depth)
    inputs = jax.tree.map(lambda x: x[None], dummy.example(cfg)["inputs"])
    both = bound_models.build(cfg).rebuild(attention="dense")
    params = jax.eval_shape(both.init, jax.random.key(0), inputs)
    tokens = cfg.train.steps * cfg.train.batch_size * cfg.data.length
    assert tokens / state.param_count(params) == pytest.approx(20, rel=0.01)


@pytest.mark.parametrize("argument", ["depth=129", "width=12"])
def test_what_is_no_depth_is_refused(argument):
    with pytest.raises(ConfigError, match=r"is no depth: .*depth from 2 to 128.*dial:depth=4"):
        dial.get_config(argument)
