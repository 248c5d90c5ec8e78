"""Encoder-decoders as they have been published since 2019: fields of their time in config.json,
other names, spare tensors."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite import build_model, load_pretrained, save_pretrained
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.models import t5
from flaxformer_lite.nn.modules.layout import unstack_layers
from flaxformer_lite.pretrained import hf_config
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.sharding.mesh import build_mesh
from tests.models.tiny import built
from tests.pretrained.fixtures import MANIFEST, ROOT, loaded

PAIRS = [name for name, entry in MANIFEST.items() if entry["kind"] == "seq2seq"]
BART = [name for name in PAIRS if "t5" not in name]
# Fields that the first releases wrote but did not read.
RELICS = {
    "_num_labels": 3,
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "classif_dropout": 0.0,
    "early_stopping": True,
    "extra_pos_embeddings": 2,
    "force_bos_token_to_be_generated": True,
    "gradient_checkpointing": False,
    "length_penalty": 2.0,
    "max_length": 142,
    "min_length": 56,
    "no_repeat_ngram_size": 3,
    "normalize_before": False,
    "normalize_embedding": True,
    "num_beams": 4,
    "num_hidden_layers": 12,
    "output_past": True,
    "prefix": " ",
    "static_position_embeddings": False,
    "task_specific_params": {"summarization": {"num_beams": 4}},
}
T5_RELICS = {
    "n_positions": 512,
    "output_past": True,
    "scalable_attention": True,
    "task_specific_params": {},
    "tokenizer_class": "T5Tokenizer",
}


def edited(name, target, change=lambda tensors: tensors, **fields):
    config = json.loads((ROOT / name / "config.json").read_text()) | fields
    (target / "config.json").write_text(json.dumps(config))
    save_file(change(load_file(ROOT / name / "model.safetensors")), target / "model.safetensors")
    return target


def same(params, due):
    jax.tree.map(np.testing.assert_array_equal, params, due)


@pytest.mark.parametrize("name", PAIRS)
def test_fields_of_old_configs_change_nothing(name, tmp_path):
    model, params = load_pretrained(
        edited(name, tmp_path, **(RELICS if name in BART else T5_RELICS))
    )
    assert model.cfg == loaded(name)[0].cfg
    same(params, loaded(name)[1])


@pytest.mark.parametrize("name", [n for n in BART if "separate" not in n and "cond" in n])
def test_names_without_prefix_copies_of_the_table_and_no_bias(name, tmp_path):
    """Facebook's BART was saved as the bare model: no prefix, a table for each side, no bias on
    logits."""

    def bare(tensors):
        found = {
            key.removeprefix("model."): value
            for key, value in tensors.items()
            if key != "final_logits_bias"
        }
        copies = {
            f"{side}.embed_tokens.weight": found["shared.weight"].copy()
            for side in ("encoder", "decoder")
        }
        return found | copies | {"encoder.version": np.zeros(1, np.float32)}

    _, params = load_pretrained(edited(name, tmp_path, bare), head="lm")
    due = loaded(name)[1]
    assert not np.any(params["lm_head"]["bias"]) and np.any(due["lm_head"]["bias"])
    same(params | {"lm_head": due["lm_head"]}, due)


def test_sinusoids_in_the_file_must_be_sinusoids(tmp_path):
    def doctored(tensors):
        name = "model.decoder.embed_positions.weight"
        return tensors | {name: tensors[name][:, ::-1].copy()}

    with pytest.raises(WeightsError, match=r"decoder\.embed_positions\.weight is not the table"):
        load_pretrained(edited("pegasus_conditional_generation", tmp_path, doctored))


@pytest.mark.parametrize("name", [name for name in PAIRS if "t5" in name])
def test_the_encoder_of_a_whole_model(name, tmp_path):
    model, params = load_pretrained(ROOT / name, head="encoder")
    due = loaded(name)[1]
    same(params, {key: due[key] for key in ("encoder", "token_embed")})
    save_pretrained(tmp_path, model, params)
    same(load_pretrained(tmp_path)[1], params)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["umt5_conditional_generation", "bart_conditional_generation"])
def test_scanned(name, tmp_path):
    scanned, stacked = load_pretrained(ROOT / name, scan=True)
    same(unstack_layers(jax.device_get(stacked)), loaded(name)[1])
    save_pretrained(tmp_path, scanned, stacked)
    same(load_pretrained(tmp_path)[1], loaded(name)[1])


@pytest.mark.parametrize("tied", [True, False])
def test_a_vocabulary_for_each_side(tied, tmp_path):
    """Two tables of two sizes, each split over the mesh, and back again."""
    sizes = {
        "vocab_size": 64,
        "decoder_vocab_size": 96,
        "decoder_num_heads": 2,
        "decoder_mlp_dim": 40,
    }
    model, params = built(
        build_model("marian", "tiny", tie_embeddings=tied, pad_token_id=63, **sizes).cfg
    )
    save_pretrained(tmp_path, model, params)
    assert json.loads((tmp_path / "config.json").read_text())["decoder_start_token_id"] == 63
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tied
    _, split = load_pretrained(tmp_path, mesh=build_mesh(MeshConfig(data=2, fsdp=2, tensor=2)))
    assert not split["decoder_token_embed"]["embedding"].sharding.is_fully_replicated
    same(split, params)


@pytest.mark.parametrize(
    ("ours", "published"),
    [("gelu_tanh", "gated-gelu"), ("gelu", "gated-gelu_python"), ("silu", "gated-silu")],
)
def test_gated_activations_have_names_of_their_own(ours, published):
    model = build_model("t5", "v1_1_tiny", activation=ours)
    fields = hf_config.write_config(t5, model.cfg)
    assert fields["feed_forward_proj"] == published
    assert hf_config.read_config(t5, fields, "lm").activation == ours
