"""Configs of decoders in the spellings that they come in: old names, fields left out, fields that
are null."""

import json

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained.hf_config import family_of, read_config, write_config
from tests.pretrained.fixtures import ROOT


def published(name, **changes):
    """A fixture's config with some fields changed; `...` removes one."""
    config = json.loads((ROOT / name / "config.json").read_text()) | changes
    return {key: value for key, value in config.items() if value is not ...}


def read(name, **changes):
    config = published(name, **changes)
    return read_config(family_of(config, ROOT), config, "lm")


BLOOM = published("bloom_lm")
NEOX = published("gpt_neox_lm")
SAME = {
    "BLOOM of 2022": (
        "bloom_lm",
        dict(
            hidden_size=...,
            n_embed=BLOOM["hidden_size"],
            n_head=...,
            num_attention_heads=BLOOM["n_head"],
            n_inner=None,
            masked_softmax_fusion=True,
            skip_bias_add_qkv=False,
            offset_alibi=100,
            seq_length=2048,
            unk_token_id=0,
        ),
    ),
    "GPT-NeoX in transformers 5": (
        "gpt_neox_lm",
        dict(
            rotary_pct=...,
            rotary_emb_base=...,
            rope_parameters=dict(
                rope_type="default",
                rope_theta=NEOX["rotary_emb_base"],
                partial_rotary_factor=NEOX["rotary_pct"],
            ),
        ),
    ),
    "SmolLM's Llama": (
        "llama_lm",
        dict(is_llama_config=True, rope_interleaved=False, rope_scaling=None),
    ),
    "Llama 1": ("llama_lm", dict(max_sequence_length=2048, attention_bias=..., mlp_bias=...)),
    "Gemma 2": (
        "gemma2_lm",
        dict(sliding_window_size=5, hidden_act="gelu_pytorch_tanh", cache_implementation="hybrid"),
    ),
    "Gemma": ("gemma_lm", dict(hidden_act="gelu", hidden_activation=None)),
    "OPT": (
        "opt_lm",
        dict(
            output_projection=True,
            prefix="</s>",
            enable_bias=...,
            layer_norm_elementwise_affine=...,
        ),
    ),
    "Qwen 2 without windows": (
        "qwen2_lm",
        dict(use_sliding_window=False, sliding_window=3, max_window_layers=0),
    ),
    "GPT-J of 2021": (
        "gptj_lm",
        dict(rotary=True, scale_attn_weights=True, summary_type="cls_index"),
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_spelled_otherwise_means_the_same(what):
    name, changes = SAME[what]
    if what == "Qwen 2 without windows":
        assert read(name, **changes, layer_types=...).windows == (0,)
    else:
        assert read(name, **changes) == read(name)


# Values that transformers' own classes use for an absent field; null differs if it turns something
# off.
DEFAULTS = [
    ("llama_lm", "rms_norm_eps", ..., "norm_eps", 1e-6),
    (
        "llama_lm",
        "num_key_value_heads",
        None,
        "kv_heads",
        published("llama_lm")["num_attention_heads"],
    ),
    ("mistral_lm", "rms_norm_eps", ..., "norm_eps", 1e-6),
    ("mistral_lm", "sliding_window", ..., "windows", (4096,)),
    ("mistral_lm", "sliding_window", None, "windows", (0,)),
    ("gemma2_lm", "attn_logit_softcapping", ..., "attention_softcap", 50.0),
    ("gemma2_lm", "attn_logit_softcapping", None, "attention_softcap", 0.0),
    ("gemma2_lm", "final_logit_softcapping", ..., "logit_softcap", 30.0),
    ("gemma2_lm", "final_logit_softcapping", None, "logit_softcap", 0.0),
    ("gemma2_lm", "tie_word_embeddings", ..., "tie_embeddings", True),
    ("gpt_neox_lm", "use_parallel_residual", ..., "residual", "parallel"),
    ("gpt_neo_lm", "tie_word_embeddings", ..., "tie_embeddings", True),
    ("gptj_lm", "tie_word_embeddings", ..., "tie_embeddings", False),
    ("opt_lm", "do_layer_norm_before", ..., "norm_at", ("in", "final")),
    ("bart_conditional_generation", "decoder_start_token_id", ..., "decoder_start_token_id", 2),
    ("bart_conditional_generation", "decoder_attention_heads", ..., "decoder_num_heads", 16),
    ("bart_conditional_generation", "decoder_ffn_dim", ..., "decoder_mlp_dim", 4096),
    ("bart_conditional_generation", "decoder_layers", ..., "decoder_layers", 12),
    ("mbart_conditional_generation", "activation_function", ..., "activation", "gelu"),
    ("mt5_conditional_generation", "feed_forward_proj", ..., "mlp", "gated"),
    ("mt5_conditional_generation", "tie_word_embeddings", ..., "tie_embeddings", True),
    # UMT5 as published and as transformers 5 saves it.
    ("umt5_conditional_generation", "tie_word_embeddings", False, "logit_scale", 1.0),
    ("umt5_conditional_generation", "tie_word_embeddings", True, "logit_scale", 16**-0.5),
]


@pytest.mark.parametrize(("name", "field", "value", "ours", "due"), DEFAULTS)
def test_absent_and_null(name, field, value, ours, due):
    assert getattr(read(name, **{field: value}), ours) == due


# transformers 5.23: the sizes of a config that names none.
BARE = {
    "albert": dict(
        d_model=4096, num_heads=64, mlp_dim=16384, encoder_layers=12, embedding_size=128
    ),
    "bart": dict(
        d_model=1024,
        num_heads=16,
        mlp_dim=4096,
        encoder_layers=12,
        decoder_layers=12,
        activation="gelu",
    ),
    "electra": dict(d_model=256, num_heads=4, mlp_dim=1024, embedding_size=128, encoder_layers=12),
    "gemma2": dict(d_model=2304, num_heads=8, mlp_dim=9216, decoder_layers=26, kv_heads=4),
    "granite": dict(d_model=4096, decoder_layers=32),
    "marian": dict(
        d_model=1024,
        num_heads=16,
        mlp_dim=4096,
        encoder_layers=12,
        decoder_layers=12,
        max_length=1024,
        activation="gelu",
        vocab_size=58101,
    ),
    "mbart": dict(vocab_size=50265, d_model=1024, activation="gelu"),
    "mistral": dict(max_length=131072, d_model=4096, mlp_dim=14336),
    "modernbert-decoder": dict(pad_token_id=50283),
    "mt5": dict(
        encoder_layers=8,
        decoder_layers=8,
        mlp="gated",
        activation="gelu_tanh",
        tie_embeddings=True,
        num_heads=6,
    ),
    "olmo2": dict(pad_token_id=1),
    "pegasus": dict(
        vocab_size=50265, encoder_layers=12, decoder_layers=12, activation="gelu", mlp_dim=4096
    ),
    "qwen2": dict(
        vocab_size=151936, d_model=4096, num_heads=32, mlp_dim=22016, decoder_layers=32, kv_heads=32
    ),
    "qwen3": dict(
        d_model=4096,
        num_heads=32,
        mlp_dim=22016,
        decoder_layers=32,
        max_length=32768,
        head_width=128,
    ),
    "roberta": dict(
        max_length=512, type_vocab_size=2, norm_eps=1e-12, d_model=768, vocab_size=50265
    ),
    "umt5": dict(
        vocab_size=250112, encoder_layers=8, decoder_layers=8, mlp="gated", tie_embeddings=True
    ),
    "xlm-roberta": dict(vocab_size=30522, max_length=512, type_vocab_size=2, norm_eps=1e-12),
}


@pytest.mark.parametrize("model_type", BARE)
def test_a_config_that_names_no_size_has_those_of_transformers(model_type):
    bare = {"model_type": model_type}
    cfg = read_config(family_of(bare, ROOT), bare, "none")
    assert {name: getattr(cfg, name) for name in BARE[model_type]} == BARE[model_type]


REFUSED = [
    (
        "llama_lm",
        {"partial_rotary_factor": 0.5},
        "partial_rotary_factor=0.5: must be 1 in this family",
    ),
    ("llama_lm", {"rope_interleaved": True}, "rope_interleaved=True changes the numbers"),
    ("bloom_lm", {"n_inner": 5}, "n_inner=5 changes the numbers"),
    (
        "bloom_lm",
        {"apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm=True",
    ),
    ("gptj_lm", {"rotary_dim": None}, "rotary_dim=None: must be even"),
    ("gpt_neo_lm", {"attention_types": [[["global", "sparse"], 1]]}, "attention_types gives"),
    (
        "gpt2_lm",
        {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx=True changes",
    ),
    ("gemma2_lm", {"layer_types": ["chunked_attention"] * 9}, "layer_types=.* must be"),
]


@pytest.mark.parametrize(("name", "changes", "told"), REFUSED)
def test_what_we_would_compute_wrongly_is_refused(name, changes, told):
    with pytest.raises(ConfigError, match=told):
        read(name, **changes)


@pytest.mark.parametrize(
    ("name", "field", "activation"),
    [
        ("gemma_lm", "hidden_act", "silu"),
        ("gemma_lm", "hidden_act", "gelu_pytorch_tanh"),
        ("gemma2_lm", "hidden_activation", "gelu"),
        ("gemma2_lm", "hidden_activation", "gelu_pytorch_tanh"),
    ],
)
def test_activations_of_gemma_go_both_ways(name, field, activation):
    cfg = read(name, **{field: activation})
    assert write_config(family_of(published(name), ROOT), cfg)[field] == activation


@pytest.mark.parametrize("name", ["gemma_lm", "gemma2_lm"])
def test_a_prompt_both_ways_goes_both_ways_and_is_of_language_models_alone(name):
    config = published(name, use_bidirectional_attention=True)
    family = family_of(config, ROOT)
    cfg = read_config(family, config, "lm")
    assert cfg.bidirectional_prompt
    assert write_config(family, cfg)["use_bidirectional_attention"]
    with pytest.raises(ConfigError, match="use_bidirectional_attention=True changes"):
        read_config(family, config, "sequence_classification")
