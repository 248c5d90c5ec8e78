import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from flaxformer_lite import stack_layers
from flaxformer_lite.config import ConfigError, OptimizerConfig
from flaxformer_lite.models import bert, gpt2, t5
from flaxformer_lite.training import optimizer, per_param_lr
from tests.marks import daily
from tests.training.test_optimizer import updates_of

SIZES = {"vocab_size": 64, "d_model": 16, "num_heads": 2, "mlp_dim": 32}


def params_of(family, **sizes):
    model = family.Model(family.config("tiny", **SIZES, **sizes))
    ids = jnp.ones((1, 4), jnp.int32)
    inputs = (ids, ids) if family is t5 else (ids,)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *inputs)["params"])
    return jax.tree.map(lambda x: np.ones(x.shape, np.float32), shapes)


def factors_of(params, **fields):
    """Path -> factor, where it is the same for the whole parameter."""
    found = per_param_lr.factors(OptimizerConfig(**fields), params)
    return {path: value.item() for path, value in flatten_dict(found, sep="/").items()}


def test_each_layer_below_the_head_has_a_smaller_rate():
    """BEiT's numbers: with 3 layers and the head as number 4, layer l has 0.5 ** (3 - l), the
    embeddings 0.5 ** 4."""
    found = factors_of(params_of(bert, encoder_layers=3), layer_decay=0.5)
    due = {
        "embed/": 1 / 16,
        "token_embed/": 1 / 16,
        "encoder/layer_0/": 1 / 8,
        "encoder/layer_1/": 1 / 4,
        "encoder/layer_2/": 1 / 2,
        "masked_lm/": 1,
        "next_sentence/": 1,
        "pooler/": 1,
    }
    for path, value in found.items():
        assert value == next(v for name, v in due.items() if path.startswith(name)), path


def test_each_stack_counts_its_own_layers_and_shared_embeddings_follow_the_deeper_one():
    found = factors_of(
        params_of(t5, encoder_layers=1, decoder_layers=2, head_dim=8), layer_decay=0.5
    )
    assert found["encoder/layer_0/attention/query/kernel"] == 1 / 2
    assert found["decoder/layer_0/cross_attention/query/kernel"] == 1 / 4
    assert found["decoder/layer_1/attention/query/kernel"] == 1 / 2
    assert found["token_embed/embedding"] == found["encoder/position/relative"] == 1 / 8
    assert found["decoder/final_norm/scale"] == 1


@pytest.mark.parametrize("period", daily([1, 2], [2]))
def test_stacked_layers_move_as_those_side_by_side(period):
    cfg = OptimizerConfig(
        name="sgd",
        learning_rate=1.0,
        schedule="constant",
        warmup_steps=0,
        layer_decay=0.5,
        rates=("up/kernel=3",),
    )
    side = params_of(gpt2, decoder_layers=4)

    tx = optimizer.build(cfg, 10)
    stacked = stack_layers(side, period)
    due = stack_layers(updates_of(tx, side, side), period)
    jax.tree.map(np.testing.assert_array_equal, updates_of(tx, stacked, stacked), due)


def test_factors_of_all_patterns_that_match_are_multiplied():
    params = params_of(bert, encoder_layers=1)
    found = factors_of(params, rates=("encoder=0.5", "attention/(query|key)/=0.25", "masked_lm=8"))
    assert found["encoder/layer_0/attention/query/kernel"] == 0.125
    assert found["encoder/layer_0/attention/value/kernel"] == 0.5
    assert found["masked_lm/dense/kernel"] == 8 and found["token_embed/embedding"] == 1


def test_the_rate_of_weight_decay_is_scaled_too_and_other_updates_stay_bit_equal():
    params = params_of(gpt2, decoder_layers=1)
    base = OptimizerConfig(
        learning_rate=0.5, schedule="constant", warmup_steps=0, weight_decay=0.2, clip_norm=0
    )
    grads = jax.tree.map(np.zeros_like, params)
    scaled = OptimizerConfig(**{**vars(base), "rates": ("mlp/up=0.5",)})
    plain, got = (
        flatten_dict(updates_of(optimizer.build(cfg, 10), grads, params), sep="/")
        for cfg in (base, scaled)
    )
    for path in plain:
        np.testing.assert_array_equal(got[path], plain[path] * (0.5 if "mlp/up" in path else 1))


def test_what_matches_nothing_is_refused_where_the_state_is_made():
    params = params_of(gpt2, decoder_layers=1)
    with pytest.raises(
        ConfigError,
        match=r"optimizer.rates='encoder=2': matches no parameter; the first are decoder/",
    ):
        optimizer.build(OptimizerConfig(rates=("encoder=2",)), 10).init(params)
    with pytest.raises(ConfigError, match=r"optimizer.layer_decay=0.9:.*no layers"):
        optimizer.build(OptimizerConfig(layer_decay=0.9), 10).init({"up": {"kernel": np.ones(2)}})


@pytest.mark.parametrize("rate", ["embed", "embed=-1", "(=2"])
def test_rates_without_a_pattern_and_a_positive_factor_are_refused(rate):
    with pytest.raises(
        ConfigError, match=r"rates=.*(must be \"pattern=factor\"|not a regular expression)"
    ):
        OptimizerConfig(rates=(rate,))
