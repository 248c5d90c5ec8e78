"""Hints for users of other libraries: the names of this package for theirs, in error messages."""

PACKAGE = {
    **dict.fromkeys(
        ("AutoModel", "AutoModelForCausalLM"),
        "model, params = load_pretrained(path)",
    ),
    **dict.fromkeys(("AutoTokenizer", "Tokenizer"), "tokenizer = load_tokenizer(path)"),
    "AutoConfig": "load_pretrained(path)[0].cfg",
    "Trainer": "run(config, workdir) (docs/python.md)",
}
MODEL = {
    "generate": "generate(model, params, input_ids, max_new_tokens=20)",
    "predict": "model.apply({'params': params}, input_ids), or `flaxformer_lite predict`",
    "forward": "model.apply({'params': params}, input_ids)",
    "from_pretrained": "model, params = load_pretrained(path)",
    "from_preset": "build_model(family, preset), or load_pretrained(path) with weights",
    "save_pretrained": "save_pretrained(path, model, params)",
    "save": "save_pretrained(path, model, params)",
    "save_weights": "save_pretrained(path, model, params)",
    "push_to_hub": "save_pretrained(path, model, params), then `hf upload ORG/NAME path`",
    "config": "model.cfg",
    "params": "params, the tree that load_pretrained or model.init returned; the model holds none",
    "parameters": "jax.tree.leaves(params); the model holds none",
    "state_dict": "params, the tree that load_pretrained or model.init returned",
    "train": "rngs={'dropout': key} in apply, which turns dropout on",
    "eval": "nothing: dropout is off unless apply gets rngs={'dropout': key}",
    "to": "jax.device_put(params, device), or load_pretrained(path, mesh=mesh)",
    "cuda": "nothing: arrays are on the accelerator that jax finds",
    "half": "load_pretrained(path, dtype='bfloat16')",
    "resize_token_embeddings": "build_model(..., vocab_size=...)",
    "fit": "run(config, workdir), or `flaxformer_lite train` (docs/python.md)",
    "compile": "nothing: jax.jit around your function of params",
    "summary": "`flaxformer_lite inspect DIR`",
}
DROPOUT = "leave it out: dropout is on exactly if apply gets rngs={'dropout': key}"
ARGUMENTS = {
    "train": DROPOUT,
    "training": DROPOUT,
    "deterministic": DROPOUT,
    "enable_dropout": DROPOUT,
    "dropout_rng": "write rngs={'dropout': key}",
    "params": "pass the parameters first: model.apply({'params': params}, input_ids)",
    "labels": "leave it out, and compute the loss: cross_entropy(output.logits, labels)",
    "past_key_values": "write cache=init_cache(model.cfg, batch, length)",
    "use_cache": "write cache=init_cache(model.cfg, batch, length)",
    "return_dict": "leave it out: outputs are records",
}
TOKENIZER = {
    "batch_decode": "[tokenizer.decode(row) for row in rows]",
    "convert_ids_to_tokens": "[tokenizer.token(i) for i in ids]",
    "batch_encode_plus": "tokenizer(texts)",
    "encode_plus": "tokenizer(text)",
    "from_pretrained": "load_tokenizer(path)",
    "save_pretrained": "save_pretrained(path, model, params, like=DIR), which copies the tokenizer",
    "push_to_hub": "save_pretrained(path, model, params, like=DIR), then `hf upload ORG/NAME path`",
    "pad_token_id": "tokenizer.pad_id",
    "vocab_size": "model.cfg.vocab_size",
}
TOKENIZING = {
    "padding": "leave it out: rows are padded to the longest, and pad_to=N pads further",
    "truncation": "leave it out: rows are cut at max_length, by default the model's",
    "return_tensors": "leave it out: arrays are numpy's, as jax takes them",
    "add_special_tokens": "write tokenizer.encode(text, special_tokens=False)",
    "text_pair": "write pairs=",
    "return_attention_mask": "leave it out: there is one",
}


def instead(kind: str, names: dict[str, str], name: str) -> str:
    """Returns the sentence for a name of another library, or "" if it is not known."""
    write = names.get(name, "")
    return f"{kind} has no {name!r}; write {write}." if write else ""


def refused(kind: str, arguments: dict[str, str], given: list[str]) -> str:
    """Returns the sentence for the first argument of another library, or "" if there is none."""
    known = [name for name in given if arguments.get(name)]
    return f"{kind} takes no {known[0]!r}; {arguments[known[0]]}." if known else ""
