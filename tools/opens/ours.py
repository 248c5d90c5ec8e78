"""Loads what strangers published, writes it again, and says what a reader should find in it.

python -m tools.opens.ours FOLDERS
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from flaxformer_lite import generate, load_pretrained, load_tokenizer
from flaxformer_lite.__main__ import main as command
from flaxformer_lite.inference.published import read_settings
from flaxformer_lite.pretrained import chat
from tools.opens.asked import CHAT, NEW_TOKENS, TEXTS


def write(kind: str, source: Path, folder: Path) -> None:
    """Converts a published folder, and keeps beside it what we compute from the new one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.with_suffix(".json").exists():
        return
    if not folder.exists():
        with contextlib.redirect_stdout(sys.stderr):
            command(["convert", str(source), str(folder)])
    expect(kind, folder)


def expect(kind: str, folder: Path) -> None:
    """Writes FOLDER.json and FOLDER.npz: ids, the logits after each text, greedy tokens."""
    model, params = load_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    found: dict[str, Any] = {"ids": [tokenizer.encode(text) for text in TEXTS]}
    arrays = {}
    outputs = read_texts(model, params, found["ids"])
    if kind == "causal":
        for number, logits in enumerate(outputs):
            arrays[f"logits/{number}"] = logits[-1]
        if tokenizer.chat_template:
            found["chat"] = chat.encode(tokenizer, CHAT, {})
    if kind == "encoder":
        for number, hidden in enumerate(outputs):
            arrays[f"hidden/{number}"] = hidden
    else:
        prompt = found["ids"][0]
        written = generate(model, params, [prompt], max_new_tokens=NEW_TOKENS, eos_token_id=())
        start = len(prompt) if kind == "causal" else 1
        found["greedy"] = written[0, start:].tolist()
        found["stops"] = stops(folder)
    folder.with_suffix(".json").write_text(json.dumps(found))
    np.savez(folder.with_suffix(".npz"), **arrays)


def read_texts(model: nn.Module, params: dict, texts: list[list[int]]) -> list[np.ndarray]:
    """Returns logits [T, V] of a decoder, or hidden states [T, D] of an encoder, of each text."""
    ids = np.zeros((len(texts), max(map(len, texts))), np.int32)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    mask = np.asarray([[at < len(text) for at in range(ids.shape[1])] for text in texts])
    if model.cfg.skeleton == "encoder_decoder":
        return []
    output = jax.jit(model.apply)({"params": params}, ids, attention_mask=mask)
    values = output.last_hidden_state if output.logits is None else output.logits
    return [
        np.asarray(row[: len(text)], np.float32) for row, text in zip(values, texts, strict=True)
    ]


def stops(folder: Path) -> list[int]:
    """Returns the tokens that end what is written, by the folder's settings."""
    found = read_settings(folder).get("eos_token_id", ())
    return [found] if isinstance(found, int) else list(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    only = args.only.split(",") if args.only else []
    failed = {}
    for source in sorted((args.folders / "theirs").glob("*/*/")):
        kind = source.parent.name
        if only and source.name not in only:
            continue
        folder = args.folders / "ours" / kind / source.name
        try:
            write(kind, source, folder)
        except Exception as error:
            failed[source.name] = f"{type(error).__name__}: {error}"
            print(source.name, failed[source.name][:400], flush=True)
    (args.folders / "not_written.json").write_text(json.dumps(failed, indent=1))


if __name__ == "__main__":
    main()
