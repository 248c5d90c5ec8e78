"""Tokenizers of a sentencepiece model alone, against those that transformers makes."""

import json
import shutil
from pathlib import Path

import pytest

from flaxformer_lite.model_details import load_tokenizer
from flaxformer_lite.text import tokenizer

FILES = Path(__file__).parents[2] / "fixtures" / "older_tokenizers"
LLAMA = {"tokenizer_class": "LlamaTokenizer"}
GEMMA = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}
T5 = {"tokenizer_class": "T5Tokenizer"}
TURNS = {"<|im_start|>": 240, "<|im_end|>": 241}
END = {"content": "<|im_end|>", "special": True, "normalized": False}
TEXTS = ("The fox", "a <|im_end|> b", "x</s>y", "  two\n <extra_id_3>")


def write(folder, kind, model, config, added=None):
    file = "spiece.model" if kind in ("t5", "mt5") else "tokenizer.model"
    shutil.copy(FILES / model, folder / file)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if added:
        (folder / "added_tokens.json").write_text(json.dumps(added))


# With the ids of the texts, the number of tokens, and the ids of eos and pad.
CASES = [
    (
        "llama",
        "pairs.model",
        LLAMA | {"eos_token": "<|im_end|>"},
        TURNS,
        "83 128 27 16 82 / 8 83 201 38 / 83 114 2 156 / 83 17 113 92 4 72 95 7 102 28 102 148 94",
        (202, 201, None),
    ),
    (
        "llama",
        "pairs.model",
        LLAMA | {"added_tokens_decoder": {"240": END}},
        None,
        "83 128 27 16 82 / 8 83 200 38 / 83 114 2 156 / 83 17 113 92 4 72 95 7 102 28 102 148 94",
        (201, 2, None),
    ),
    (
        "llama",
        "pairs.model",
        LLAMA | {"legacy": True, "add_bos_token": True},
        None,
        "1 83 128 27 16 82 / 1 8 4 90 97 102 84 6 94 38 / 1 83 114 2 83 156 / 1 83 17 113 92 "
        "4 72 95 7 102 28 102 148 94",
        (200, 2, None),
    ),
    (
        "llama",
        "pairs.model",
        LLAMA | {"add_prefix_space": False, "add_eos_token": True},
        None,
        "128 27 16 82 2 / 86 4 90 97 102 84 6 94 38 2 / 114 2 156 2 / 83 17 113 92 4 72 95 7 "
        "102 28 102 148 94 2",
        (200, 2, None),
    ),
    (
        "llama",
        "pairs.model",
        {},
        None,
        "83 128 27 16 82 / 8 4 0 90 97 102 84 6 0 94 38 / 83 114 2 83 156 / 17 113 92 4 72 "
        "95 7 102 28 102 148 94",
        (200, 2, None),
    ),
    (
        "mistral",
        "pairs.model",
        LLAMA | {"extra_special_tokens": ["<|im_end|>"]},
        None,
        "83 128 27 16 82 / 8 200 38 / 83 114 2 83 156 / 17 113 92 4 72 95 7 102 28 102 148 94",
        (201, 2, None),
    ),
    (
        "mistral",
        "plain.model",
        LLAMA | {"legacy": False},
        TURNS,
        "3 45 33 28 5 22 / 26 165 85 / 3 22 2 117 / 14 93 5 7 9 22 79 10 65 10 110 4",
        (166, 2, None),
    ),
    (
        "gemma",
        "pairs.model",
        GEMMA,
        None,
        "200 128 27 16 82 / 200 86 4 0 90 97 102 84 6 0 94 38 / 200 114 2 156 / 200 83 17 "
        "113 92 0 4 72 95 7 102 28 102 148 94",
        (204, 201, 202),
    ),
    (
        "llama",
        "pairs.model",
        {"tokenizer_class": "CodeLlamaTokenizer"},
        None,
        "1 83 128 27 16 82 / 1 8 4 0 90 97 102 84 6 0 94 38 / 1 83 114 2 156 / 1 83 17 113 "
        "92 0 4 72 95 7 102 28 102 148 94",
        (205, 2, None),
    ),
    (
        "t5",
        "pegasus.model",
        T5,
        {"<|im_end|>": 400},
        "3 59 34 28 6 21 1 / 27 263 81 1 / 3 21 1 3 110 1 / 83 92 6 259 1",
        (264, 1, 0),
    ),
    (
        "mt5",
        "pegasus.model",
        T5 | {"extra_ids": 0, "eos_token": "<|im_end|>"},
        None,
        "3 59 34 28 6 21 163 / 27 163 81 163 / 3 21 1 3 110 163 / 83 92 6 11 8 21 79 9 67 9 "
        "93 4 163",
        (164, 163, 0),
    ),
]


@pytest.mark.parametrize("kind, model, config, added, ids, special", CASES)
def test_ids_are_those_of_transformers(kind, model, config, added, ids, special, tmp_path):
    write(tmp_path, kind, model, config, added)
    read = load_tokenizer(tmp_path)
    assert " / ".join(" ".join(map(str, read.encode(text))) for text in TEXTS) == ids
    assert (len(read), read.ids.get("eos"), read.ids.get("pad")) == special
    trained = tokenizer.load(tmp_path)
    assert trained.file == "tokenizer.json" and trained.eos_id == special[1]
