"""Reads folders with mlx-lm, on a CPU."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils
import numpy as np
from answers import ASKED, CHAT, NEW_TOKENS, TEXTS, Unknown, answer
from mlx_lm.generate import generate_step


def read(folder: Path, kind: str) -> dict[str, Any]:
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    named = mlx_lm.utils.MODEL_REMAPPING.get(model_type, model_type)
    if importlib.util.find_spec(f"mlx_lm.models.{named}") is None:
        raise Unknown(f"no {model_type}")
    model, tokenizer = mlx_lm.load(str(folder))
    found: dict[str, Any] = {"ids": [list(tokenizer.encode(text)) for text in TEXTS]}
    for number, ids in enumerate(found["ids"]):
        logits = model(mx.array([ids]))[0, -1].astype(mx.float32)
        found[f"logits/{number}"] = np.array(logits)
    written = generate_step(mx.array(found["ids"][0]), model, max_tokens=NEW_TOKENS)
    found["greedy"] = [int(token) for token, _ in written]
    found["stops"] = sorted(tokenizer.eos_token_ids)
    found["chat"] = list(tokenizer.apply_chat_template(CHAT, add_generation_prompt=True))
    if folder.name == "trained":
        found["answers"] = [chat(model, tokenizer, question) for question in ASKED]
    return found


def chat(model: Any, tokenizer: Any, question: str) -> str:
    turns = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True)
    return mlx_lm.generate(model, tokenizer, prompt, max_tokens=NEW_TOKENS).strip()


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    answer("mlx-lm", ("causal",), read)
