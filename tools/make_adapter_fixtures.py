"""Writes tests/fixtures/adapters: LoRA, DoRA and IA3 adapters as PEFT saves them, for the
models of tests/fixtures.

    /tmp/reference/bin/pip install peft==0.21.2        # beside what tools/make_fixtures.py needs
    /tmp/reference/bin/python tools/make_adapter_fixtures.py

A folder is named after its model's, with a suffix where one model has several: adapter_config.json,
adapter_model.safetensors, and expected.npz with the logits of PEFT for the inputs of the model's
own default case.
"""

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peft import IA3Config, LoraConfig, get_peft_model

ROOT = Path(__file__).parents[1] / "tests" / "fixtures"
TOKENS = [49, 54, 5]  # among those of the inputs
NOISY = "lora_B", "modules_to_save", "trainable_tokens_delta"
CONFIGS = {"LORA": LoraConfig, "IA3": IA3Config}
ADAPTERS: dict[str, dict[str, Any]] = {
    "bert_sequence_classification": {
        "target_modules": ["query", "value"],
        "task_type": "SEQ_CLS",
        "lora_alpha": 8,
    },
    "bert_masked_lm": {"target_modules": "all-linear", "use_rslora": True},
    "gpt2_lm": {
        "target_modules": ["c_attn", "attn.c_proj"],
        "task_type": "CAUSAL_LM",
        "fan_in_fan_out": True,
    },
    "gpt_neox_lm": {
        "target_modules": ["query_key_value", "dense_4h_to_h"],
        "task_type": "CAUSAL_LM",
    },
    "llama_lm": {
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "task_type": "CAUSAL_LM",
        "lora_dropout": 0.1,
    },
    "llama_lm-uneven": {
        "target_modules": ["q_proj", "k_proj", "gate_proj"],
        "task_type": "CAUSAL_LM",
        "layers_to_transform": [1],
        "rank_pattern": {"k_proj": 2},
        "alpha_pattern": {"gate_proj": 24},
    },
    "llama_lm-saved": {
        "target_modules": ["q_proj"],
        "task_type": "CAUSAL_LM",
        "modules_to_save": ["lm_head", "embed_tokens", "post_attention_layernorm"],
    },
    "gpt2_lm-saved": {
        "target_modules": ["attn.c_proj"],
        "task_type": "CAUSAL_LM",
        "fan_in_fan_out": True,
        "modules_to_save": ["wte", "ln_f"],
    },
    "gpt2_lm-tokens": {  # with tied logits
        "target_modules": ["attn.c_proj"],
        "task_type": "CAUSAL_LM",
        "fan_in_fan_out": True,
        "trainable_token_indices": TOKENS,
    },
    "llama_lm-tokens": {
        "target_modules": ["q_proj"],
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": {"embed_tokens": TOKENS, "lm_head": TOKENS[:2]},
    },
    "gpt2_lm-dora": {
        "target_modules": ["c_attn", "mlp.c_proj"],
        "task_type": "CAUSAL_LM",
        "fan_in_fan_out": True,
        "use_dora": True,
    },
    "llama_lm-dora": {
        "target_modules": ["q_proj", "o_proj", "up_proj"],
        "task_type": "CAUSAL_LM",
        "use_dora": True,
        "use_rslora": True,
    },
    "gpt2_lm-ia3": {
        "peft_type": "IA3",
        "target_modules": ["c_attn", "mlp.c_proj"],
        "feedforward_modules": ["mlp.c_proj"],
        "task_type": "CAUSAL_LM",
        "fan_in_fan_out": True,
    },
    "t5_conditional_generation-ia3": {
        "peft_type": "IA3",
        "target_modules": ["k", "v", "o", "wo"],
        "feedforward_modules": ["o", "wo"],
        "task_type": "SEQ_2_SEQ_LM",
    },
    "gpt2_lm-head": {
        "target_modules": ["attn.c_proj", "lm_head"],
        "task_type": "CAUSAL_LM",
    },
    "llama_lm-head": {"target_modules": ["v_proj", "lm_head"], "task_type": "CAUSAL_LM"},
    "t5_conditional_generation": {"target_modules": ["q", "v", "wo"], "task_type": "SEQ_2_SEQ_LM"},
}


def main() -> None:
    torch.set_num_threads(1)
    shutil.rmtree(ROOT / "adapters", ignore_errors=True)
    for name, options in ADAPTERS.items():
        make(
            ROOT / "adapters" / name,
            ROOT / name.partition("-")[0],
            options if "peft_type" in options else {"r": 3, "lora_alpha": 12, **options},
        )


def make(folder: Path, model: Path, options: dict[str, Any]) -> None:
    """Makes an adapter with noise on both factors, as a trained one has."""
    torch.manual_seed(zlib.crc32(folder.name.encode()))
    architecture = json.loads((model / "config.json").read_text())["architectures"][0]
    base = getattr(transformers, architecture).from_pretrained(model, dtype=torch.float32)
    base.name_or_path = model.name
    config = CONFIGS[options.get("peft_type", "LORA")]
    adapted = get_peft_model(base, config(**options)).eval()
    for path, parameter in adapted.named_parameters():
        if any(name in path for name in NOISY):
            parameter.data = 0.3 * torch.randn_like(parameter)
        if "lora_magnitude_vector" in path or "ia3_l" in path:
            parameter.data = parameter * (1 + 0.5 * torch.randn_like(parameter))
    with np.load(model / "expected.npz") as file:
        start = "default/in/"
        inputs = {
            k.removeprefix(start): torch.tensor(v) for k, v in file.items() if k.startswith(start)
        }
    with torch.no_grad():
        logits = adapted(**inputs).logits.float().numpy()
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink()
    np.savez_compressed(folder / "expected.npz", logits=logits)
    print(
        f"{folder.name:36s} {sum(path.stat().st_size for path in folder.iterdir()) / 1024:.1f} KB"
    )


if __name__ == "__main__":
    main()
