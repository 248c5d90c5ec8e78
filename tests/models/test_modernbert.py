"""ModernBERT's published config, and how far its local layers see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import build_model
from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import modernbert
from flaxformer_lite.nn.positions.rope import Rope
from flaxformer_lite.pretrained.hf_config import read_config, write_config
from tests.pretrained.test_known_configs import FIELDS

BASE = FIELDS["answerdotai/ModernBERT-base"]


def test_the_published_config_is_the_preset_whose_classifier_takes_the_mean():
    cfg = read_config(modernbert, BASE, "masked_lm")
    assert cfg == modernbert.config("base", classifier_pooling="mean", pad_token_id=50283)
    windows = [kind.window for kind in cfg.kinds]
    assert windows == [0 if layer % 3 == 0 else 65 for layer in range(22)]
    assert {kind.position for kind in cfg.kinds} == {None, Rope(base=10_000.0)}
    assert cfg.position.base == 160_000
    assert cfg.kinds[0].norm_at == ("mlp_in",)


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
