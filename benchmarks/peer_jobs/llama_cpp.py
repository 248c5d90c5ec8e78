"""llama.cpp's server within the process, by the wheel xllamacpp, with `WRITER.FORM.gguf`.

Its int8 is Q8_0.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.peer_jobs import NEW, PROMPT, Case, Work, draw_prompts

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def file_of(case: Case) -> Path:
    return Path(f"{case.writer}.{case.form}.gguf")


def name_in_gguf(name: str) -> str:
    whole = {"model.embed_tokens.weight": "token_embd.weight"}
    whole["model.norm.weight"] = "output_norm.weight"
    if name in whole:
        return whole[name]
    _, _, layer, *part, _ = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(part)]}.weight"


def pair_halves(kernel: np.ndarray, heads: int) -> np.ndarray:
    """Puts beside each other the rows that rotate together, as llama.cpp's converter does."""
    halves = kernel.reshape(heads, 2, -1, kernel.shape[1])
    return halves.swapaxes(1, 2).reshape(kernel.shape)


def convert(case: Case) -> None:
    """Writes a Llama as GGUF, unless that is done."""
    import gguf
    from safetensors.numpy import load_file

    if file_of(case).exists():
        return
    config = json.loads((Path(case.writer) / "config.json").read_text())
    out = gguf.GGUFWriter(file_of(case), "llama")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    out.add_vocab_size(config["vocab_size"])
    tokenizer = json.loads((Path(case.writer) / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.get)
    kinds = []
    for token in tokens:
        kind = gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL
        kinds.append(kind)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    for name, tensor in load_file(Path(case.writer) / "model.safetensors").items():
        named = name_in_gguf(name)
        for part, count in heads.items():
            if f".{part}." in named:
                tensor = pair_halves(tensor, config[count])
        kind = gguf.GGMLQuantizationType.F32
        if case.form == "int8" and tensor.ndim > 1:
            kind = gguf.GGMLQuantizationType.Q8_0
            tensor = gguf.quants.quantize(tensor, kind)
        out.add_tensor(named, tensor, raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def start(case: Case) -> object:
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(file_of(case))
    settings.n_ctx = case.rows * 2 * (PROMPT + NEW)
    settings.n_parallel = case.rows
    settings.cpuparams.n_threads = case.threads
    settings.cpuparams_batch.n_threads = case.threads
    settings.warmup = False
    return xllamacpp.Server(settings)


def generate(case: Case) -> Work:
    server = start(case)
    asked = []
    for prompt in draw_prompts(case.rows):
        settings = {"n_predict": NEW, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        asked.append({"prompt": prompt.tolist(), **settings})

    def work() -> list[str]:
        with ThreadPoolExecutor(case.rows) as pool:  # the server computes them as one batch
            answers = list(pool.map(server.handle_completions, asked))
        assert all(answer["usage"]["completion_tokens"] == NEW for answer in answers)
        return [answer["choices"][0]["text"] for answer in answers]

    return work


JOBS = {"generate": generate}  # a server that is asked nothing does not end, so none is loaded
