"""Each closed choice of a config field has exactly one implementation."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import (
    Execution,
    InitConfig,
    ModelConfig,
    NormConfig,
    OptimizerConfig,
    TokenizerConfig,
    choices,
)
from flaxformer_lite.config.architecture import INIT_FIELDS, TASK_FIELDS, WEIGHTLESS_FIELDS
from flaxformer_lite.data import corpora
from flaxformer_lite.models.fields import ACTIVATION_NAMES
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.modules import stack
from flaxformer_lite.nn.modules.einsum import make_initializer
from flaxformer_lite.nn.modules.norms import Norm
from flaxformer_lite.text import tokenizer_training
from flaxformer_lite.training import optimizer


@pytest.mark.parametrize(
    ("named", "implemented"),
    [
        (choices.ACTIVATIONS, ACTIVATIONS),
        (choices.ACTIVATIONS, ACTIVATION_NAMES),
        (choices.CORPORA, corpora.CORPORA),
        (choices.REMATS, {"none", *stack.POLICIES}),
        (choices.TOKENIZERS, {"bytes", *tokenizer_training.SMALLEST}),
    ],
)
def test_a_table_of_implementations_has_exactly_the_choices(named, implemented):
    assert sorted(named) == sorted(implemented)


def made_by(kind):
    """Numbers that each value of the choice gives."""
    x = jnp.asarray([[1.0, -2.0, 0.5, 4.0]])
    match kind:
        case "INITS":
            cfgs = [InitConfig(kind=name, stddev=0.3, layers=4) for name in choices.INITS]
            return [
                make_initializer(cfg, 4, 2, residual=True)(jax.random.key(0), (4, 2), jnp.float32)
                for cfg in cfgs
            ]
        case "NORMS":
            params = {"scale": jnp.full(4, 2.0), "bias": jnp.ones(4)}
            return [
                Norm(NormConfig(kind=name)).apply({"params": params}, x) for name in choices.NORMS
            ]
        case "SCHEDULES":
            cfgs = [
                OptimizerConfig(schedule=name, warmup_steps=2, decay_steps=4)
                for name in choices.SCHEDULES
            ]
            return [optimizer.schedule(cfg, 20)(jnp.arange(20)) for cfg in cfgs]
        case "TOKENIZERS":
            cfgs = [TokenizerConfig(name=name, vocab_size=600) for name in choices.TOKENIZERS]
            return [
                tokenizer_training.train(cfg, ["a cat sleeps"] * 20).encode("a cat") for cfg in cfgs
            ]


@pytest.mark.parametrize("kind", ["INITS", "NORMS", "SCHEDULES", "TOKENIZERS"])
def test_no_choice_falls_through_to_another(kind):
    for one, other in itertools.combinations(made_by(kind), 2):
        assert not np.array_equal(np.asarray(one), np.asarray(other))


def test_fields_that_change_no_weight_are_fields_each_once():
    assert len(set(WEIGHTLESS_FIELDS)) == len(WEIGHTLESS_FIELDS)
    assert {f.name for f in dataclasses.fields(ModelConfig)} >= set(WEIGHTLESS_FIELDS)
    own = set(WEIGHTLESS_FIELDS) - {*INIT_FIELDS, *TASK_FIELDS}
    assert {f.name for f in dataclasses.fields(Execution)} == own
