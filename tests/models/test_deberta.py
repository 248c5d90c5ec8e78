"""DeBERTa's published files: their configs are the presets, and their masked-LM head is
read by either name."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from flaxformer_lite import build_model, load_pretrained, save_pretrained
from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import deberta, deberta_v2
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.pretrained.hf_config import read_config
from tests.pretrained.fixtures import stored

SHARED = dict(
    attention_probs_dropout_prob=0.1,
    hidden_act="gelu",
    hidden_dropout_prob=0.1,
    initializer_range=0.02,
    layer_norm_eps=1e-7,
    max_position_embeddings=512,
    max_relative_positions=-1,
    pad_token_id=0,
    pooler_dropout=0,
    pooler_hidden_act="gelu",
    position_biased_input=False,
    relative_attention=True,
    type_vocab_size=0,
)
# config.json of microsoft/deberta-base, deberta-v2-xlarge and deberta-v3-base
V1 = SHARED | dict(
    model_type="deberta",
    hidden_size=768,
    intermediate_size=3072,
    num_attention_heads=12,
    num_hidden_layers=12,
    padding_idx=0,
    pooler_hidden_size=768,
    pos_att_type="c2p|p2c",
    vocab_size=50265,
)
V2 = SHARED | dict(
    model_type="deberta-v2",
    attention_head_size=64,
    conv_act="gelu",
    conv_kernel_size=3,
    hidden_size=1536,
    intermediate_size=6144,
    norm_rel_ebd="layer_norm",
    num_attention_heads=24,
    num_hidden_layers=24,
    pooler_hidden_size=1536,
    pos_att_type="p2c|c2p",
    position_buckets=256,
    share_att_key=True,
    vocab_size=128100,
)
V3 = V1 | dict(
    model_type="deberta-v2",
    norm_rel_ebd="layer_norm",
    pos_att_type="p2c|c2p",
    position_buckets=256,
    share_att_key=True,
    vocab_size=128100,
)


def test_the_published_configs_are_the_presets_and_have_their_sizes():
    cfg = read_config(deberta_v2, V3, "none")
    assert cfg == deberta_v2.config("v3_base", head="none")
    sizes = [leaf.size for leaf in parameter_shapes(build_model(cfg)).values()]
    assert sum(sizes) == 183_831_552
    assert read_config(deberta_v2, V2, "masked_lm") == deberta_v2.config("xlarge")
    assert read_config(deberta, V1, "masked_lm") == deberta.config("base")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(pos_att_type="p2p|c2p"), r"pos_att_type=\['p2p', 'c2p'\]: only c2p and p2c"),
        (dict(relative_attention=False), r"relative_attention=False, .* one without the other"),
        (dict(embedding_size=128), r"embedding_size=128.*changes.*768"),
        (dict(position_buckets=2), r"mixer\.buckets=2, .* needs at least 4 buckets"),
    ],
)
def test_what_is_not_computed_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        read_config(deberta_v2, V3 | changes, "none")


def test_the_masked_lm_head_is_read_by_the_name_of_microsofts_files(tmp_path):
    """Which transformers reads with `legacy: false` only."""
    mixer = dataclasses.replace(deberta_v2.BASE["mixer"], buckets=4)
    sizes = dict(vocab_size=20, d_model=8, num_heads=2, mlp_dim=8, encoder_layers=1, mixer=mixer)
    model = build_model(deberta_v2.config("tiny", **sizes))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    save_pretrained(tmp_path, model, params)
    names = {"transform.": "lm_predictions.lm_head.", "bias": "lm_predictions.lm_head.bias"}
    renamed = {}
    for name, array in stored(tmp_path).items():
        for ours, theirs in names.items():
            name = name.replace(f"cls.predictions.{ours}", theirs)
        renamed[name] = array
    assert sum("lm_predictions" in name for name in renamed) == 5
    save_file(renamed, tmp_path / "model.safetensors")
    _, again = load_pretrained(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, dict(again), params)
