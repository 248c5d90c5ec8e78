"""Reads folders with vLLM, on a CPU."""

import gc
import json
import os
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that an error is that of the engine itself
}

import numpy as np
from answers import ASKED, CHAT, NEW_TOKENS, TEXTS, Unknown, answer
from vllm import LLM, ModelRegistry, SamplingParams

COMPARED = 64  # likeliest tokens whose log-probabilities are asked for


def read(folder: Path, kind: str) -> dict[str, Any]:
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    if architecture not in ModelRegistry.get_supported_archs():
        raise Unknown(f"no {architecture}")
    engine = LLM(
        model=str(folder),
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=len(TEXTS),
        max_logprobs=COMPARED,
        gpu_memory_utilization=0.2,  # of the machine's memory, on a CPU
        enable_prefix_caching=False,
    )
    tokenizer = engine.get_tokenizer()
    found: dict[str, Any] = {"ids": [list(tokenizer.encode(text)) for text in TEXTS]}
    greedy = SamplingParams(
        max_tokens=NEW_TOKENS, temperature=0, logprobs=COMPARED, ignore_eos=True
    )
    prompts = [{"prompt_token_ids": ids} for ids in found["ids"]]
    written = [one.outputs[0] for one in engine.generate(prompts, greedy, use_tqdm=False)]
    for number, one in enumerate(written):
        likely = {token: x.logprob for token, x in one.logprobs[0].items()}
        found[f"top_ids/{number}"] = np.array(list(likely))
        found[f"top_logprobs/{number}"] = np.array(list(likely.values()))
    found["greedy"] = list(written[0].token_ids)
    found["chat"] = list(
        tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    )
    stops = engine.get_default_sampling_params().stop_token_ids or []
    found["stops"] = sorted({tokenizer.eos_token_id, *stops})
    if folder.name == "trained":
        plain = SamplingParams(max_tokens=NEW_TOKENS, temperature=0)
        turns = [[{"role": "user", "content": question}] for question in ASKED]
        said = engine.chat(turns, plain, use_tqdm=False)
        found["answers"] = [one.outputs[0].text.strip() for one in said]
    del engine
    gc.collect()
    return found


if __name__ == "__main__":
    answer("vLLM", ("causal",), read)
