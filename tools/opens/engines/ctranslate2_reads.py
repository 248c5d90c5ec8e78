"""Reads folders with CTranslate2, by its converter from transformers."""

import json
import tempfile
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import transformers
from answers import ASKED, CHAT, NEW_TOKENS, TEXTS, Unknown, answer
from ctranslate2.converters import TransformersConverter


def read(folder: Path, kind: str) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found: dict[str, Any] = {"ids": [tokenizer(text).input_ids for text in TEXTS]}
    with tempfile.TemporaryDirectory() as to:
        try:
            TransformersConverter(str(folder), low_cpu_mem_usage=True).convert(to, force=True)
        except ValueError as error:
            if "No conversion is registered" in str(error):
                raise Unknown(str(error)) from None
            raise
        said = json.loads(Path(to, "config.json").read_text())
        if kind == "encoder":
            model = ctranslate2.Encoder(to, compute_type="float32")
            for number, ids in enumerate(found["ids"]):
                hidden = model.forward_batch([ids]).last_hidden_state
                found[f"hidden/{number}"] = np.array(hidden)[0]
            return found
        prompt = tokenizer.convert_ids_to_tokens(found["ids"][0])
        greedy = {"beam_size": 1, "end_token": [], "sampling_topk": 1}
        if kind == "seq2seq":
            model = ctranslate2.Translator(to, compute_type="float32")
            (result,) = model.translate_batch(
                [prompt], max_decoding_length=NEW_TOKENS, min_decoding_length=NEW_TOKENS, **greedy
            )
            found["greedy"] = tokenizer.convert_tokens_to_ids(result.hypotheses[0])
            return found
        model = ctranslate2.Generator(to, compute_type="float32")
        (result,) = model.generate_batch(
            [prompt],
            max_length=NEW_TOKENS,
            min_length=NEW_TOKENS,
            include_prompt_in_result=False,
            **greedy,
        )
        found["greedy"] = result.sequences_ids[0]
        found["chat"] = list(
            tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
        )
        found["eos_token"] = said.get("eos_token")
        if folder.name == "trained":
            found["answers"] = [chat(model, tokenizer, question) for question in ASKED]
        for number, ids in enumerate(found["ids"]):
            tokens = tokenizer.convert_ids_to_tokens(ids)
            found[f"logits/{number}"] = np.array(model.forward_batch([tokens]))[0, -1]
    return found


def chat(model: ctranslate2.Generator, tokenizer: Any, question: str) -> str:
    turns = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    (result,) = model.generate_batch(
        [tokenizer.tokenize(prompt)],
        max_length=NEW_TOKENS,
        include_prompt_in_result=False,
        beam_size=1,
        sampling_topk=1,
    )
    return tokenizer.decode(result.sequences_ids[0], skip_special_tokens=True).strip()


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    answer("CTranslate2", ("causal", "seq2seq", "encoder"), read)
