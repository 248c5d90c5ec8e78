"""The configs of the tiny reference checkpoints, as transformers spells them.

Sizes are odd on purpose (heads that do not divide the width, fewer key/value heads, windows shorter
than the text, epsilons large enough to matter), so that a swapped axis, a forgotten scale or an
ignored field shows in the outputs.
"""

from typing import Any

BERT = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 14,
    "type_vocab_size": 2,
    "layer_norm_eps": 3e-3,
}
ROBERTA = BERT | {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
FACTORISED = BERT | {"embedding_size": 12}
ALBERT = {**FACTORISED, "hidden_act": "gelu_new", "bos_token_id": 2, "eos_token_id": 3}
DISTILBERT = {
    "vocab_size": 61,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 20,
    "max_position_embeddings": 14,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm_roberta": ROBERTA | {"vocab_size": 67},
    "distilbert": DISTILBERT,
    "electra": FACTORISED,
    "albert": ALBERT,
    "roformer": FACTORISED,
}
WITH_PRETRAINING = ("bert", "electra", "albert")
WITH_CAUSAL_LM = ("bert", "roberta", "xlm_roberta", "electra", "roformer")
WITH_TOKEN_TYPES = ("bert", "electra", "albert", "roformer")

GPT = {"vocab_size": 61, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 20}
GPT |= {"layer_norm_epsilon": 3e-3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "max_position_embeddings": 32,
    "rms_norm_eps": 3e-3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = LLAMA | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
OPT = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "ffn_dim": 20,
    "max_position_embeddings": 24,
    "num_attention_heads": 2,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
}
NEOX = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
    "layer_norm_eps": 3e-3,
    "pad_token_id": 1,
}
# model_type: (config, config.json as published, dtype of the file)
DECODERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "gpt2": (GPT, {}, "float32"),
    "gpt_neo": (
        {
            "vocab_size": 61,
            "max_position_embeddings": 24,
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "intermediate_size": 20,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 3,
            "layer_norm_epsilon": 3e-3,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        {},
        "float16",
    ),
    "gptj": (GPT | {"rotary_dim": 4}, {}, "float16"),
    "gpt_neox": (
        NEOX,
        {"rope_parameters": None, "rotary_pct": 0.25, "rotary_emb_base": 50},
        "float16",
    ),
    "opt": (OPT, {}, "float16"),
    "bloom": (
        {
            "vocab_size": 61,
            "hidden_size": 12,
            "n_layer": 2,
            "n_head": 3,
            "layer_norm_epsilon": 3e-3,
            "pad_token_id": 3,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        {},
        "bfloat16",
    ),
    "llama": (
        LLAMA,
        {"rope_parameters": None, "rope_theta": 50.0, "rope_scaling": None},
        "float16",
    ),
    "mistral": (
        GROUPED
        | {
            "sliding_window": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        },
        {},
        "bfloat16",
    ),
    "qwen2": (LLAMA | {"num_key_value_heads": 1, "tie_word_embeddings": True}, {}, "bfloat16"),
    "qwen3": (
        GROUPED
        | {
            "head_dim": 10,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
        {},
        "bfloat16",
    ),
    "gemma": (GROUPED | {"num_key_value_heads": 1, "head_dim": 10}, {}, "bfloat16"),
    "gemma2": (
        GROUPED
        | {
            "num_hidden_layers": 3,
            "head_dim": 10,
            "query_pre_attn_scalar": 7,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
            "sliding_window": 4,
        },
        {},
        "bfloat16",
    ),
}
# Heads that transformers has for other decoders.
WITHOUT = {
    "gptj": ("token_classification",),
    "opt": ("token_classification",),
    "gemma": ("question_answering",),
    "gemma2": ("question_answering",),
}
LLAMA3 = GROUPED | {"max_position_embeddings": 256}
LLAMA3_ROPE = {
    "rope_parameters": None,
    "rope_theta": 100.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}

T5 = {
    "vocab_size": 61,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 20,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "layer_norm_epsilon": 3e-3,
    "decoder_start_token_id": 0,
}
GATED = T5 | {"feed_forward_proj": "gated-gelu"}
HALF = {"file_dtype": "float16"}
UNTIED = {"tie_word_embeddings": False, "scale_decoder_outputs": None}  # as T5 1.1 is published
BART = {
    "vocab_size": 61,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 24,
}
MARIAN = BART | {
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 60,
    "decoder_start_token_id": 60,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
}
PEGASUS = BART | {"activation_function": "relu", "scale_embedding": True}
