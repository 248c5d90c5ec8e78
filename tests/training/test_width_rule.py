"""The rule of widths: activations of one size at all widths, and rates, scales and refusals by
hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import build_model
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TrainConfig,
)
from flaxformer_lite.inference.inside.capture import capture
from flaxformer_lite.models import gpt2, llama, t5
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.pretrained.hf_config import write_config
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.training import bound_models, optimizer, program, state

WIDTHS = (64, 128, 256, 512)
BASE = 64
STEPS = 3
INSIDE = ("decoder/layer_*", "decoder/*/attention", "decoder/*/attention/logits", "decoder/*/mlp")
RULE = {"width_rule": "mup", "base_width": BASE}


def experiment(family, width, rule, **fields):
    """A model of one layer, whose heads grow with its width."""
    sizes = {"d_model": width, "num_heads": 2, "head_dim": width // 2, "mlp_dim": 2 * width}
    sizes |= {"num_kv_heads": 1 if family is llama else 0, "decoder_layers": 1, "vocab_size": 32}
    if rule == "mup":
        sizes |= RULE | {"base_head_dim": BASE // 2}
    optimizer_fields = {"learning_rate": 4e-3, "schedule": "constant", "warmup_steps": 0} | fields
    return ExperimentConfig(
        model=family.config("tiny", **sizes, max_length=8, dropout=0.0),
        objective=CausalLm(),
        data=DataConfig(length=8),
        optimizer=OptimizerConfig(**optimizer_fields),
        train=TrainConfig(steps=10, loss_chunks=1),
    )


def sizes_inside(cfg):
    """Mean absolute values inside the model and of the change of its logits, after some steps."""
    model = build_model(cfg.model)
    ids_BT = jnp.asarray(np.random.default_rng(0).integers(0, 32, (2, 9)), jnp.int32)
    inputs = {"input_ids": ids_BT[:, :-1], "segment_ids": jnp.ones((2, 8), jnp.int32)}
    targets = {"labels": ids_BT[:, 1:], "weights": jnp.ones((2, 8))}
    step = program.train_step(cfg, bound_models.build(cfg))
    tx = program.update_rule(cfg)

    @jax.jit
    def run(key):
        first = state.create(lambda: model.init(key, inputs["input_ids"])["params"], tx)

        def body(now, _):
            return step(now, {"inputs": inputs, "targets": targets})[0], None

        last, _ = jax.lax.scan(body, first, length=STEPS)
        before = model.apply({"params": first.params}, inputs["input_ids"]).logits
        output, values = capture(model, last.params, inputs["input_ids"], INSIDE)
        values["logits"] = output.logits - before
        return {name: jnp.mean(jnp.abs(x)) for name, x in values.items()}

    return jax.device_get(run(jax.random.key(0)))


def slopes(family, rule, **fields):
    """Slopes of the logarithms of sizes over that of the width."""
    by_width = [sizes_inside(experiment(family, width, rule, **fields)) for width in WIDTHS]
    found = {}
    for name in by_width[0]:
        sizes = [sizes[name] for sizes in by_width]
        found[name] = np.polyfit(np.log(WIDTHS), np.log(sizes), 1)[0]
    return found


def are_flat(found):
    """Attention's logits fall by the root of the width at first, until queries and keys align."""
    least = {name: -0.5 if name.endswith("attention/logits") else -0.2 for name in found}
    return all(least[name] < slope < 0.1 for name, slope in found.items())


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["adamw", "lion", "muon", "muon_spectral", "schedule_free"])
@pytest.mark.parametrize("family", [gpt2, llama])
def test_activations_of_all_widths_have_one_size(family, name):
    """The coordinate check of Tensor Programs V, appendix D.1, with each optimizer of the rule."""
    found = slopes(family, "mup", name=name)
    assert are_flat(found), found


@pytest.mark.nightly
def test_those_of_the_standard_rule_grow_with_the_width():
    found = slopes(gpt2, "standard")
    assert all(slope > 0.3 for slope in found.values()), found


def model_config(family=gpt2, **fields):
    sizes = {"vocab_size": 32, "d_model": 64, "num_heads": 2, "mlp_dim": 128, "head_dim": 32}
    return family.config("tiny", **sizes | fields)


def test_at_the_base_it_is_the_standard_rule():
    for family in (gpt2, llama, t5):
        plain = model_config(family)
        ruled = dataclasses.replace(plain, **RULE)
        for name in ("scale", "embed_scale", "logit_scale", "initial"):
            assert getattr(ruled, name) == getattr(plain, name), (family, name)
        assert ruled.initial_head.stddev == (64**-0.5 if plain.init == "fan_in" else 0.02)


def test_scales_by_hand():
    wide = {"d_model": 256, "mlp_dim": 512, "head_dim": 64}
    gpt = model_config(**wide, **RULE, base_head_dim=16)
    assert (gpt.logit_scale, gpt.initial.width_ratio) == (0.25, 4.0)
    assert gpt.scale == 16**-0.5 * 16 / 64
    tied = model_config(t5, **wide, **RULE)
    assert (tied.logit_scale, tied.embed_scale, tied.scale) == (64**-0.5 / 4, 1.0, 1.0)


def test_initial_weights_and_rates_by_hand():
    cfg = model_config(llama, d_model=256, mlp_dim=512, decoder_layers=1, **RULE)
    model = build_model(cfg)
    params = jax.jit(model.init)(jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
    ones = jax.tree.map(jnp.ones_like, params)
    optimizer_cfg = OptimizerConfig(
        learning_rate=1.0, schedule="constant", warmup_steps=0, weight_decay=0.5, clip_norm=0.0
    )
    tx = optimizer.build(optimizer_cfg, 1, width=4.0)
    updates = jax.jit(lambda g, p: tx.update(g, tx.init(p), p)[0])(ones, ones)
    sizes = {path_of(keys): float(x.std()) for keys, x in leaves(params)}
    moved = {path_of(keys): float(x.mean()) for keys, x in leaves(updates)}
    np.testing.assert_allclose(sizes["decoder/layer_0/mlp/up/kernel"], 0.01, rtol=0.05)
    np.testing.assert_allclose(sizes["token_embed/embedding"], 0.02, rtol=0.05)
    np.testing.assert_allclose(sizes["lm_head/kernel"], 0.02, rtol=0.05)
    # the decay does not follow the width
    np.testing.assert_allclose(moved["decoder/layer_0/mlp/up/kernel"], -0.75, rtol=1e-5)
    np.testing.assert_allclose(moved["token_embed/embedding"], -1.5, rtol=1e-5)
    np.testing.assert_allclose(moved["lm_head/kernel"], -1.5, rtol=1e-5)
    np.testing.assert_allclose(moved["decoder/layer_0/mlp_in_norm/scale"], -1.0, rtol=1e-5)


def leaves(tree):
    return jax.tree_util.tree_leaves_with_path(tree)


def test_published_it_is_scales_or_refused():
    wide = model_config(d_model=256, head_dim=0, **RULE)
    plain = wide.without_width_rule
    assert (plain.width_rule, plain.logit_scale) == ("standard", wide.logit_scale)
    with pytest.raises(ConfigError, match=r"logit_multiplier=0.25: a published gpt2 cannot"):
        write_config(gpt2, wide)
    assert write_config(gpt2, model_config(**RULE))["n_embd"] == 64


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width_rule": "mup"}, r"base_width=0.*such as base_width=128"),
        ({"base_width": 64}, r"base_width=64, width_rule='standard'"),
        (RULE | {"head": "sequence_classification"}, r"head='sequence_classification'.*head lm"),
        (RULE | {"init": "xavier"}, r"init='xavier'.*set width_rule=standard"),
        ({"width_rule": "mu"}, r"no 'mu'; did you mean 'mup'"),
    ],
)
def test_what_it_does_not_cover_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        model_config(**fields)


@pytest.mark.parametrize("name", ["sgd", "adafactor"])
def test_an_optimizer_without_powers_is_refused(name):
    cfg = experiment(gpt2, 64, "mup", name=name)
    with pytest.raises(ConfigError, match=r"WIDTH_POWERS.*choose .*adamw"):
        program.update_rule(cfg)
