"""Makes folders as strangers publish them: small random models of transformers, with a tokenizer.

    TORCH/bin/python tools/opens/sources.py FOLDERS --tokenizer=path/to/smollm2 [--only=qwen3,t5]

Sizes are those that every engine has kernels for (heads of 32), and weights are drawn wide enough
that the greedy token is not a matter of rounding.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

# What a config may say of its sizes, by the names of any family.
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "d_model": 128,
    "dim": 128,
    "n_embd": 128,
    "intermediate_size": 512,
    "ffn_dim": 512,
    "ffn_hidden_size": 512,
    "d_ff": 512,
    "n_inner": 512,
    "hidden_dim": 512,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "d_kv": 32,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "initializer_range": 0.08,
    "init_std": 0.08,
}
SLIDING = ["sliding_attention", "full_attention"]
LINEAR = ["linear_attention", "full_attention"]
MIXED = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
# Families with a language model, by model_type, and what the default of their config has too large.
CAUSAL: dict[str, dict[str, Any]] = {
    "arcee": {},
    "bloom": {},
    "cohere": {},
    "cohere2": {"num_hidden_layers": 4, "sliding_window": 16},
    "cwm": {"layer_types": SLIDING, "sliding_window": 16},
    "deepseek_v3": MIXED
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "head_dim": 32,
    },
    "ernie4_5": {},
    "exaone4": {"num_hidden_layers": 4, "sliding_window": 16},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "gemma": {},
    "gemma2": {"layer_types": SLIDING, "sliding_window": 16, "query_pre_attn_scalar": 32},
    "gemma3_text": {"num_hidden_layers": 6, "sliding_window": 16, "query_pre_attn_scalar": 32},
    "gemma4_text": {
        "layer_types": SLIDING,
        "sliding_window": 16,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
    },
    "glm": {},
    "glm4": {},
    "glm4_moe": MIXED
    | {"n_routed_experts": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "gpt2": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "gpt_neox": {},
    "gpt_oss": {
        "layer_types": SLIDING,
        "sliding_window": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 128,
    },
    "gptj": {"rotary_dim": 16},
    "granite": {},
    "helium": {},
    "hyperclovax": {},
    "lfm2": {"layer_types": ["conv", "full_attention"], "intermediate_size": 512},
    "llama": {},
    "minimax_m2": MIXED | {"num_local_experts": 4},
    "ministral": {"layer_types": SLIDING, "sliding_window": 16},
    "ministral3": {},
    "mistral": {"sliding_window": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo": {},
    "olmo2": {},
    "olmo3": {"layer_types": SLIDING, "sliding_window": 16},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4},
    "opt": {"word_embed_proj_dim": 128},
    "phi": {"num_key_value_heads": 4},
    "phi3": {"original_max_position_embeddings": 512},
    "qwen2": {},
    "qwen2_moe": MIXED | {"num_experts": 4, "shared_expert_intermediate_size": 64},
    "qwen3": {},
    "qwen3_moe": MIXED | {"num_experts": 4, "norm_topk_prob": True},
    "qwen3_next": MIXED
    | {
        "num_experts": 4,
        "shared_expert_intermediate_size": 64,
        "layer_types": LINEAR,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
    "seed_oss": {},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
}
SEQ2SEQ: dict[str, dict[str, Any]] = {
    "bart": {"decoder_start_token_id": 2, "pad_token_id": 1},
    "m2m_100": {"decoder_start_token_id": 2, "pad_token_id": 1},
    "marian": {"decoder_start_token_id": 2, "pad_token_id": 1},
    "mbart": {"decoder_start_token_id": 2, "pad_token_id": 1},
    "pegasus": {"decoder_start_token_id": 2, "pad_token_id": 1},
    "t5": {"decoder_start_token_id": 0},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "distilbert": {},
    "modernbert": {"local_attention": 16},
    "mpnet": {"pad_token_id": 1},
    "roberta": {},
    "xlm-roberta": {},
}
# Families whose published folders have a SentencePiece model, which llama.cpp's converter reads.
SENTENCEPIECE = (
    "ernie4_5",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "pegasus",
    "phi3",
    "t5",
)
TURNS = (
    "{% for turn in messages %}<start_of_turn>{{ turn['role'] }}\n"
    "{{ turn['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PIECES = 2000
AUTO = {
    "causal": (CAUSAL, "AutoModelForCausalLM"),
    "seq2seq": (SEQ2SEQ, "AutoModelForSeq2SeqLM"),
    "encoder": (ENCODERS, "AutoModel"),
}


def train_sentencepiece(folder: Path) -> Path:
    """Trains a tokenizer as Gemma's is on this project's pages, and writes both of its files."""
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    pages = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))
    text = folder / "text.txt"
    text.write_text("\n".join(page.read_text() for page in pages))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=PIECES,
        model_type="bpe",
        byte_fallback=True,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        user_defined_symbols=["<start_of_turn>", "<end_of_turn>"],
        minloglevel=2,
    )
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    config = named | {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TURNS}))
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def make(kind: str, model_type: str, tokenizer: Path, folder: Path) -> None:
    """Writes a random model of a family, with a tokenizer that fits it."""
    table, auto = AUTO[kind]
    vocabulary = transformers.AutoTokenizer.from_pretrained(tokenizer)
    known = transformers.AutoConfig.for_model(model_type).to_dict()
    sizes = {name: value for name, value in SIZES.items() if name in known}
    tokens = {
        "vocab_size": len(vocabulary),
        "bos_token_id": vocabulary.bos_token_id,
        "eos_token_id": vocabulary.eos_token_id,
        "pad_token_id": vocabulary.pad_token_id,
    }
    config = transformers.AutoConfig.for_model(model_type, **(sizes | tokens | table[model_type]))
    torch.manual_seed(0)
    model = getattr(transformers, auto).from_config(config, dtype=torch.float32)
    spread(model)
    model.save_pretrained(folder)
    vocabulary.save_pretrained(folder)
    if (tokenizer / "tokenizer.model").exists():  # version 5 of transformers does not write it
        shutil.copy(tokenizer / "tokenizer.model", folder)


def spread(model: torch.nn.Module) -> None:
    """Draws biases and norms too, which begin as zeros and ones, where a mistake would not show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    only = args.only.split(",") if args.only else []
    pieces = train_sentencepiece(args.folders.parent / "sentencepiece")
    failed = {}
    for kind, (table, _) in AUTO.items():
        for model_type in table:
            if only and model_type not in only:
                continue
            tokenizer = pieces if model_type in SENTENCEPIECE else args.tokenizer
            try:
                make(kind, model_type, tokenizer, args.folders / kind / model_type)
            except Exception as error:
                failed[model_type] = f"{type(error).__name__}: {error}"
                print(model_type, failed[model_type][:300], flush=True)
    (args.folders / "not_made.json").write_text(json.dumps(failed, indent=1))


if __name__ == "__main__":
    main()
