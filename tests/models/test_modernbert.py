"""ModernBERT's published config, and how far its local layers see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import build_model
from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import modernbert
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.nn.positions.rope import Rope
from flaxformer_lite.pretrained.hf_config import read_config, write_config
from tests.marks import daily

# config.json of answerdotai/ModernBERT-base, less what no family computes with.
BASE = dict(
    model_type="modernbert",
    architectures=["ModernBertForMaskedLM"],
    attention_bias=False,
    classifier_activation="gelu",
    classifier_bias=False,
    classifier_dropout=0.0,
    classifier_pooling="mean",
    decoder_bias=True,
    deterministic_flash_attn=False,
    global_attn_every_n_layers=3,
    global_rope_theta=160000.0,
    hidden_activation="gelu",
    hidden_size=768,
    intermediate_size=1152,
    layer_norm_eps=1e-05,
    local_attention=128,
    local_rope_theta=10000.0,
    max_position_embeddings=8192,
    mlp_bias=False,
    norm_bias=False,
    norm_eps=1e-05,
    num_attention_heads=12,
    num_hidden_layers=22,
    pad_token_id=50283,
    position_embedding_type="absolute",
    reference_compile=None,
    repad_logits_with_grad=False,
    sparse_pred_ignore_index=-100,
    sparse_prediction=False,
    tie_word_embeddings=True,
    vocab_size=50368,
)


def test_the_published_config_is_the_preset_whose_classifier_takes_the_mean():
    cfg = read_config(modernbert, BASE, "masked_lm")
    assert cfg == modernbert.config("base", classifier_pooling="mean", pad_token_id=50283)
    windows = [kind.window for kind in cfg.kinds]
    assert windows == [0 if layer % 3 == 0 else 65 for layer in range(22)]
    assert {kind.position for kind in cfg.kinds} == {None, Rope(base=10_000.0)}
    assert cfg.position.base == 160_000
    assert cfg.kinds[0].norm_at == ("mlp_in",)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    daily([("base", 149_655_232), ("large", 395_881_664)], [("base", 149_655_232)]),
)
def test_presets_are_the_published_sizes(preset, parameters):
    shapes = parameter_shapes(build_model("modernbert", preset))
    assert sum(np.prod(leaf.shape) for leaf in shapes.values()) == parameters


def test_both_spellings_say_the_same():
    cfg = read_config(modernbert, BASE, "none")
    written = write_config(modernbert, cfg)
    by_type = {"layer_types", "rope_parameters"}
    assert by_type < written.keys()
    older = {key: value for key, value in written.items() if key not in by_type}
    newer = {key: value for key, value in written.items() if key != "global_attn_every_n_layers"}
    assert read_config(modernbert, older, "none") == read_config(modernbert, newer, "none") == cfg


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classifier_pooling": "max"}, "classifier_pooling='max'"),
        ({"classifier_activation": "relu"}, "classifier_activation='relu'"),
        ({"rope_parameters": {"chunked_attention": {}}}, "rope_parameters.chunked_attention"),
        ({"layer_types": ["full_attention"]}, "must be 22 entries"),
        ({"local_attention": 0}, "local_attention=0: must be at least 1"),
    ],
)
def test_what_it_does_not_compute_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        read_config(modernbert, BASE | change, "masked_lm")


@pytest.mark.parametrize(
    ("family", "pooling"), [("modernbert", "late"), ("modernbert", "max"), ("bert", "mean")]
)
def test_a_pooling_that_the_family_does_not_compute_is_refused(family, pooling):
    with pytest.raises(ConfigError, match=f"classifier_pooling='{pooling}'"):
        build_model(family, "tiny", classifier_pooling=pooling)


def test_a_local_layer_sees_half_the_window_to_each_side_and_padding_changes_nothing():
    """Where torch's eager attention gives NaN: padding that sees no token at all."""
    kinds = modernbert.pattern([3], Rope())
    cfg = modernbert.config(
        "tiny", encoder_layers=1, vocab_size=8, pattern=kinds, head="none", d_model=16
    )
    model = build_model(cfg)
    ids = jnp.ones((1, 16), jnp.int32)
    params = model.init(jax.random.key(0), ids)["params"]
    forward = jax.jit(
        lambda ids, mask: (
            model.apply({"params": params}, ids, attention_mask=mask).last_hidden_state
        )
    )
    every = jnp.ones_like(ids)
    given = forward(ids, every)
    changed = jnp.any(given != forward(ids.at[0, 8].set(2), every), axis=-1)[0]
    assert np.flatnonzero(changed).tolist() == [6, 7, 8, 9, 10]
    six = every.at[:, 6:].set(0)
    padded = forward(ids.at[:, 6:].set(3), six)[:, :6]
    np.testing.assert_allclose(padded, forward(ids, six)[:, :6], rtol=1e-6)
