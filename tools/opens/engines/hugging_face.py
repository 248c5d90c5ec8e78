"""Reads folders with transformers, of whichever version is installed."""

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from answers import CHAT, NEW_TOKENS, TEXTS, Unknown, answer

AUTO = {
    "causal": transformers.AutoModelForCausalLM,
    "seq2seq": transformers.AutoModelForSeq2SeqLM,
    "encoder": transformers.AutoModel,
}


def read(folder: Path, kind: str) -> dict[str, Any]:
    if folder.name not in transformers.CONFIG_MAPPING:
        raise Unknown(f"no {folder.name}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = AUTO[kind].from_pretrained(folder, torch_dtype=torch.float32).eval()
    found: dict[str, Any] = {"ids": [tokenizer(text).input_ids for text in TEXTS]}
    stops = model.generation_config.eos_token_id if kind != "encoder" else None
    if kind == "causal":
        found["chat"] = list(
            tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
        )
    with torch.no_grad():
        for number, ids in enumerate(found["ids"]):
            if kind == "causal":
                logits = model(torch.tensor([ids])).logits[0, -1]
                found[f"logits/{number}"] = logits.numpy()
            if kind == "encoder":
                hidden = model(torch.tensor([ids])).last_hidden_state[0]
                found[f"hidden/{number}"] = hidden.numpy()
        if kind != "encoder":
            found["stops"] = stops if isinstance(stops, list) else [stops]
            written = model.generate(
                torch.tensor([found["ids"][0]]),
                attention_mask=torch.ones(1, len(found["ids"][0]), dtype=torch.long),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                num_beams=1,
                eos_token_id=None,
            )
            start = len(found["ids"][0]) if kind == "causal" else 1
            found["greedy"] = written[0, start:].tolist()
    return found


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    np.seterr(all="ignore")
    major = importlib.metadata.version("transformers").split(".")[0]
    answer(f"transformers {major}", ("causal", "seq2seq", "encoder"), read)
