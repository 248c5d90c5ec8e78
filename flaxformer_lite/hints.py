"""Hints for users of other libraries: the names of this package for theirs, in error messages."""

import re
from collections.abc import Collection

PACKAGE = {
    **dict.fromkeys(
        ("AutoModel", "AutoModelForCausalLM"),
        "model, params = load_pretrained(path)",
    ),
    **dict.fromkeys(("AutoTokenizer", "Tokenizer"), "tokenizer = load_tokenizer(path)"),
    "AutoConfig": "load_pretrained(path)[0].cfg",
    **dict.fromkeys(
        ("Trainer", "Seq2SeqTrainer", "train"), "run(get_config(page), workdir) (docs/python.md)"
    ),
    **dict.fromkeys(
        ("TrainingArguments", "Seq2SeqTrainingArguments"),
        "config = get_config(page), whose fields replace the arguments (docs/python.md)",
    ),
    "SFTTrainer": "run(get_config('instruct'), workdir) (docs/fine-tuning.md)",
    "DPOTrainer": "run(get_config('dpo'), workdir) (docs/fine-tuning.md)",
    "GRPOTrainer": "run(get_config('grpo'), workdir) (docs/rl.md)",
    "RLOOTrainer": "run(get_config('grpo'), workdir) (docs/rl.md)",
    "SentenceTransformer": "load_embedder(path).encode(texts) (docs/embeddings.md)",
    "CrossEncoder": "run(get_config('rerank'), workdir), or `flaxformer_lite predict`",
    "PeftModel": "load_pretrained(path, adapter=DIR) (docs/adapters.md)",
    "get_peft_model": "load_pretrained(path, adapter=LoraConfig(rank=8)) (docs/adapters.md)",
    "pipeline": "generate(model, params, ids), or `flaxformer_lite predict`, `embed`",
    "from_pretrained": "model, params = load_pretrained(path)",
    "verify": "from flaxformer_lite.contrib.verify.checks import verify (docs/verify.md)",
}
COMMANDS = {
    "chat": "generate --model DIR --chat --prompt TEXT",
    "fill-mask": 'generate --model DIR --prompt "The capital of [MASK] is Paris."',
    "finetune": "train --config=classify --config.train.init_from=DIR (docs/fine-tuning.md)",
    "push": "convert, then `hf upload ORG/NAME DIR`",
    "replay": "steps --workdir DIR --at STEP --run",
    "serve": "convert, and a server for the folder (docs/export.md)",
    "verify-mesh": "verify --checks mesh --config=PAGE",
}
# What is written since 0.4 for a flag of before, of one command or of any.
FLAGS = {
    "data --seed": "the seed of the rows as --config.seed=N",
    "evaluate --escape_formulas": "predict --output FILE.jsonl",
    "evaluate --output": "predict --output FILE",
    **dict.fromkeys(("generate --max_length", "generate --max_tokens"), "--max_new_tokens N"),
    "export --head": "convert --head HEAD SRC NEW, and export NEW",
    **dict.fromkeys(
        (
            "lm-eval --include_path",
            "lm-eval --limit",
            "lm-eval --num_fewshot",
            "lm-eval --output_path",
        ),
        "it after --, with the harness's other flags",
    ),
    **dict.fromkeys(
        ("--max_score", "--min_score", "--sampling"),
        "MiningRules(...) of contrib.hard_negatives.mining in Python",
    ),
    "--absolute_margin": "--relative_margin, or call mine() in Python",
    "--answer": "chat.encode(continue_final_message=True) in Python",
    "--base": "convert --base DIR RUN NEW, and use NEW",
    "--companion": "--auxiliary",
    "--draft_tokens": "--set num_assistant_tokens=N",
    "--escape_formulas": "--output FILE.jsonl, or import the columns of the csv as text",
    "--check": "check_files(FILE) of contrib.export.folder in Python",
    "--corpus": "--file",
    "--family": "load_pretrained(DIR, family='MODULE:MODEL') in Python",
    "--fold_labels": "labels as the model spells them",
    "--full": "--all",
    "--length_penalty": "--set length_penalty=X",
    "--literal": "tokenizer.encode(text, allow_special=False) in Python",
    "--max_tokens": "--length",
    "--max_length": "--length",
    "--min_new_tokens": "--set min_new_tokens=N",
    "--min_p": "--set min_p=X",
    "--no_repeat_ngram_size": "--set no_repeat_ngram_size=N",
    "--num_return_sequences": "--set num_return_sequences=N",
    "--out": "--output",
    "--prompt_lookup": "--set prompt_lookup_num_tokens=N",
    "--prompt_name": "--prompt NAME",
    "--range_max": "--range FROM:TO",
    "--range_min": "--range FROM:TO",
    "--repetition_penalty": "--set repetition_penalty=X",
    "--shard_size": "save_pretrained(shard_bytes=) in Python",
    "--weights": "--dtype",
    "--start_timeout": "--peer_timeout, a fifth of it",
}
# The homes of models that are known by their name alone, by its first word.
HOMES = {
    "albert": "albert",
    "all": "sentence-transformers",
    "bert": "google-bert",
    "camembert": "almanach",
    "distilbert": "distilbert",
    "distilgpt2": "distilbert",
    "distilroberta": "distilbert",
    "gpt2": "openai-community",
    "roberta": "FacebookAI",
    "t5": "google-t5",
    "xlm": "FacebookAI",
}
# A class of transformers: its framework, family, and task or kind of model.
CLASS = re.compile(
    r"(Flax|TF)?(\w+?)(?:For([A-Z]\w+)|(LMHead|MT|Encoder|)Model(?:With(Projection))?)",
)
# The heads of classes by what their names end in.
HEADS = {
    "": "none",
    "CausalLM": "lm",
    "ConditionalGeneration": "lm",
    "Encoder": "encoder",
    "LMHead": "lm",
    "MT": "lm",
    "MaskedLM": "masked_lm",
    "MultipleChoice": "multiple_choice",
    "NextSentencePrediction": "next_sentence",
    "PreTraining": "pretraining",
    "Projection": "projection",
    "QuestionAnswering": "question_answering",
    "Seq2SeqLM": "lm",
    "SequenceClassification": "sequence_classification",
    "TokenClassification": "token_classification",
}
AUTO = ("Auto", "AutoModel")
ENCODERS = re.compile(r"(?!.*Decoder).*(Bert|berta|BigBird|Electra|RoFormer|Data2Vec)")
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
    "resize_token_embeddings": "load_pretrained(DIR, vocab_size=...)",
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
    "add_tokens": "`--config.data.tokenizer.add=('<tool>',)` of a run (docs/change-a-model.md)",
    "add_special_tokens": "`--config.data.tokenizer.add` of a run (docs/change-a-model.md)",
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


def published_address(name: str) -> str:
    """Returns the address that a model's bare name stands for, or "" if it is not known."""
    home = HOMES.get(name.partition("-")[0], "")
    if not home or "/" in name:
        return ""
    return f"hf://{home}/{name}"


def instead_of_class(kind: str, name: str, families: Collection[str]) -> str:
    """Returns the sentence for a class of transformers, or "" if it is not known.

    Args:
      kind: what lacks the class.
      families: the files of flaxformer_lite/models, by which classes without a framework in
        their name are known.
    """
    return instead(kind, {name: _written_for_class(name, families)}, name)


def _written_for_class(name: str, families: Collection[str]) -> str:
    known = {family.replace("_", ""): family for family in families}
    tokenized = name.removesuffix("Fast")
    if tokenized.endswith("Tokenizer") and tokenized.removesuffix("Tokenizer").lower() in known:
        return PACKAGE["AutoTokenizer"]
    configured = known.get(name.removesuffix("Config").lower(), "")
    if configured and name.endswith("Config"):
        return f"build_model({configured!r}, preset, **sizes), or load_pretrained(path)[0].cfg"
    match = CLASS.fullmatch(name)
    if not match:
        return ""
    framework, family, task, kind, projection = match.groups()
    head = HEADS.get(task or projection or kind or "", "")
    is_known = framework or family in AUTO or family.lower() in known
    if not (head and is_known):
        return ""
    option = f", head={head!r}"
    if task == "CausalLM" and ENCODERS.match(family):
        option = ", head='causal_lm'"
    if family in AUTO and task in ("CausalLM", "PreTraining"):  # config.json decides
        option = ""
    return f"model, params = load_pretrained(path{option}) (docs/migration.md)"
