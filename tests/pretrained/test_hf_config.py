"""Fields of config.json whose values no model has: each is named, and nothing is built of them."""

import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError
from flaxformer_lite.open_model import open_pretrained
from flaxformer_lite.pretrained import hf_config
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.models.tiny import small
from tests.pretrained.fixtures import ROOT
from tests.pretrained.test_refusals import copied, edit_config

VALUES = {
    "bert_masked_lm": {
        "hidden_size": [-16, 0, 16.0, True, [], float("inf"), 10**12],
        "vocab_size": [0, 10**12, {}],
        "num_hidden_layers": [0, 2.5, 10**12],
        "num_attention_heads": [0, True],
        "layer_norm_eps": ["1e-12", -1.0, float("nan"), [None]],
        "tie_word_embeddings": ["no", 1],
        "pad_token_id": ["0", [0]],
        "architectures": [["BertForKaraoke"], 3, {}, {"content": 3}, [{"content": 3}]],
        "id2label": [["A", "B"]],
        "quantization_config": [{"bits": 4}],
        "is_decoder": ["x"],
    },
    "llama3_lm": {
        "rope_theta": [0, -1.0, "10000"],
        "rope_scaling": [
            ["llama3"],
            {"rope_type": "llama3"},
            {"rope_type": "linear", "factor": "2"},
            {"rope_type": "linear", "factor": 0.5},
            {"rope_type": ["linear"]},
            {"rope_type": "linear", "type": "yarn"},
        ],
        "num_key_value_heads": [3, -2],
        "attention_bias": ["yes"],
    },
    "mistral_lm": {"sliding_window": [0, -4, "4"]},
    "qwen3_lm": {
        "layer_types": ["full", [["full_attention"], ["full_attention"]]],
        "max_window_layers": [[1]],
    },
    "gemma2_lm": {
        "attn_logit_softcapping": [0.0, -1.0, "30"],
        "query_pre_attn_scalar": [0],
        "sliding_window": [0],
    },
    "gpt_neo_lm": {"attention_types": [[None], [[["global"], 10**12]], 3], "window_size": [0]},
    "gptj_lm": {"n_head": [0], "rotary_dim": [0, 3, 64]},
    "t5_conditional_generation": {
        "relative_attention_num_buckets": [-1, 0, 7],
        "relative_attention_max_distance": [0],
        "feed_forward_proj": [5, "gated-"],
    },
    "albert_groups_base": {"num_hidden_groups": [0], "num_hidden_layers": [10**12]},
}
CASES = [
    (name, field, value)
    for name, fields in VALUES.items()
    for field, values in fields.items()
    for value in values
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: copied(name, tmp_path_factory.mktemp(name)) for name in VALUES}


@pytest.mark.parametrize(("name", "field", "value"), CASES)
def test_value_that_no_model_has(folders, name, field, value):
    path = folders[name] / "config.json"
    before = path.read_text()
    edit_config(folders[name], **{field: value})
    try:
        with pytest.raises(ConfigError, match=OURS.get(field, field)):
            open_pretrained(folders[name])
    finally:
        path.write_text(before)


# Rules of our own configs name their own fields.
OURS = {
    "num_key_value_heads": "num_kv_heads",
    "relative_attention_num_buckets": "num_buckets",
    "relative_attention_max_distance": "max_distance",
    "sliding_window": "sliding_window|a window of 0",
    "window_size": "a window of 0",
    "feed_forward_proj": "feed_forward_proj|is_gated_act",
    "hidden_size": "hidden_size|d_model",
    "num_attention_heads": "num_attention_heads|num_heads",
}


def test_more_layers_than_tensors(folders):
    """Refused before the layers are traced, which would take an hour."""
    path = folders["bert_masked_lm"] / "config.json"
    before = path.read_text()
    edit_config(folders["bert_masked_lm"], num_hidden_layers=1_999)
    with pytest.raises(WeightsError, match=r"has 1999.*weights.*42 tensors"):
        open_pretrained(folders["bert_masked_lm"])
    path.write_text(before)


def test_one_architecture_need_not_be_in_a_list(folders):
    edit_config(folders["bert_masked_lm"], architectures="BertForMaskedLM")
    assert open_pretrained(folders["bert_masked_lm"])[0].cfg.head == "masked_lm"


def test_how_it_runs_may_differ_from_what_the_file_says():
    """The file has a dropout of its own."""
    assert open_pretrained(ROOT / "bert_masked_lm", dropout=0.3)[0].cfg.dropout == 0.3
    assert open_pretrained(ROOT / "bert_masked_lm")[0].cfg.dropout == 0.1


@pytest.mark.parametrize("position", registry.available("positions"))
def test_a_family_whose_published_form_has_other_positions_is_told(position):
    """A run may change them; whatever its `write` reads of its own ones, the error is one."""
    encoding = registry.resolve_class("positions", position)()
    told = 0
    for name in registry.available("models"):
        family = registry.resolve("models", name)
        if not hasattr(family, "PUBLISHED"):
            continue
        try:
            cfg = small(name, position=encoding)
        except (ConfigError, TypeError, ValueError):  # refused at once
            continue
        try:
            hf_config.write_config(family, cfg)
        except ConfigError:
            told += 1
    assert told > 20
