"""Reads folders with transformers, of whichever version is installed."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from answers import (
    ASKED,
    CHAT,
    NEW_TOKENS,
    SENTENCES,
    TAGGED,
    TEXTS,
    Unknown,
    answer,
)

AUTO = {
    "causal": transformers.AutoModelForCausalLM,
    "seq2seq": transformers.AutoModelForSeq2SeqLM,
    "encoder": transformers.AutoModel,
}


def chat(model: Any, tokenizer: Any, question: str) -> str:
    """Returns the answer, with the settings of the folder and its own end."""
    turns = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS)
    start = inputs["input_ids"].shape[1]
    return tokenizer.decode(written[0, start:], skip_special_tokens=True).strip()


def classify(folder: Path) -> dict[str, Any]:
    pipe = transformers.pipeline("text-classification", str(folder), top_k=None)
    rows = []
    for scores in pipe(list(SENTENCES)):
        probabilities = {f"probability_{x['label']}": x["score"] for x in scores}
        rows.append({"prediction": scores[0]["label"]} | probabilities)
    return {"rows": rows}


def tag(folder: Path) -> dict[str, Any]:
    pipe = transformers.pipeline(
        "token-classification", str(folder), aggregation_strategy="first", ignore_labels=[]
    )
    rows = []
    for text in TAGGED:
        tags = []
        for group in pipe(text):
            first = group["entity_group"]
            following = "O" if first == "O" else f"I-{first}"
            words = group["word"].split()
            tags += [first if first == "O" else f"B-{first}", *[following] * (len(words) - 1)]
        rows.append({"prediction": tags})
    return {"rows": rows}


def read(folder: Path, kind: str) -> dict[str, Any]:
    if kind == "classifier":
        return classify(folder)
    if kind == "tagger":
        return tag(folder)
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    if model_type not in transformers.CONFIG_MAPPING:
        raise Unknown(f"no {model_type}")
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
            model.generation_config.forced_eos_token_id = None  # of BART, at the last token
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
            if folder.name == "trained":
                found["answers"] = [chat(model, tokenizer, question) for question in ASKED]
            found["greedy"] = written[0, start:].tolist()
    return found


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    np.seterr(all="ignore")
    major = importlib.metadata.version("transformers").split(".")[0]
    answer(f"transformers {major}", ("causal", "seq2seq", "encoder", "classifier", "tagger"), read)
