"""Compares every family and head with torch transformers, in both directions.

    make scoreboard TORCH=/tmp/reference/bin/python

A family has a file in tests/pretrained/families, named after its model_type, with its `draws`: the
fields of config.json in which each of its tiny models differs from small defaults. For the first
draw and each class that transformers has for the family, and the other draws of one class (`head`
of the file, else the language model), in three steps; `only` lists the heads of a family that has
not all of its model_type's, `lengths` are those of two rows longer than usual, `with_head` the
fields that a head needs besides those of a draw, `classes` those that no auto class has, and
`reference` a module of tools/ with the classes of a family that transformers lacks. Of the first
draw, the loss of labels and its gradient are compared too:

    python tools/scoreboard.py theirs /tmp/board       # torch: makes files and outputs
    python tools/scoreboard.py ours /tmp/board         # JAX: loads, compares, generates, saves
    python tools/scoreboard.py back /tmp/board         # torch: loads what was saved, compares
    python tools/scoreboard.py table /tmp/board        # writes docs/families.md

With `theirs --store` the numbers of the first draw go into the family's file, and
tests/pretrained/test_families.py compares with them without torch. Weights are those of
tests/pretrained/recipe.py. The exit status is 1 where a difference exceeds the tolerance.
"""

import argparse
import datetime
import importlib
import inspect
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from tests.pretrained import recipe  # noqa: E402

FAMILIES = ROOT / "tests" / "pretrained" / "families"
PAGE = ROOT / "docs" / "families.md"
TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4  # sums of many terms in another order
# A tensor's gradient is compared with its largest value, or with this share of the largest of all
# tensors: where all keys are shifted alike no output changes, so biases of keys have only noise.
SHARE_OF_LARGEST = 1e-2
IGNORED = -100  # the label that torch leaves out of a loss
NEW_TOKENS = 4
# Small values of the fields that a config class may have, by their names in any family.
SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "d_model": 24,
    "dim": 24,
    "n_embd": 24,
    "intermediate_size": 28,
    "ffn_dim": 28,
    "ffn_hidden_size": 28,
    "d_ff": 28,
    "n_inner": 28,
    "hidden_dim": 28,
    "encoder_ffn_dim": 28,
    "decoder_ffn_dim": 20,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "d_kv": 6,
    "max_position_embeddings": 32,
    "n_positions": 32,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
# Auto classes of transformers, by our column of the table.
HEADS = {
    "base": "MODEL_MAPPING_NAMES",
    "encoder": "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES",
    "lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked_lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "pretraining": "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "next_sentence": "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES",
    "sequence": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "question": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "choice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
}
COLUMNS = (*HEADS, "projection")  # the last by `classes` of a family's file
# Draws of families that have no file, as their tests have fixtures; others have small defaults.
DRAWS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 12},
    "electra": {"embedding_size": 12},
    "gemma2": {"sliding_window": 3},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 3},
    "gpt_neox": {"hidden_size": 32},
    "gptj": {"rotary_dim": 4},
    "marian": {"decoder_start_token_id": 1},
    "mistral": {"sliding_window": 3},
    "qwen3": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "roformer": {"embedding_size": 12},
    "t5": {"decoder_start_token_id": 0},
}
# What a family of transformers that is not here needs, by what its source names first.
LACKS = {
    "images, audio or video": r"pixel_values|input_features|vision_config|audio_config",
    "experts": r"[Ee]xperts?\b",
    "latent attention": r"kv_lora_rank",
    "gated delta rule": r"delta_rule",
    "a state-space or recurrent mixer": r"selective_scan|[Mm]amba|rwkv|rg_lru|recurrent_gemma",
    "attention sinks": r"\bsinks\b",
    "disentangled attention": r"[Dd]isentangled",
    "block-local or block-sparse attention": r"block_sparse|LocalAttention|global_attention_mask",
    "hashed attention": r"LSHSelfAttention|lsh_",
    "two-stream attention": r"two_stream|output_g",
    "convolutions": r"Conv[12]d",
}
WRITTEN_NAMES = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    "encoder.layer.*.attention.self.rotary_embeddings": "rotary_embeddings",
}
MODEL_TYPE = r'^    (?:model_type=)?"([\w-]+)",$'  # in the file of a family
ALIASES = ("xlm-roberta",)  # rows of models/roberta.py that no file of draws names
WITHOUT_TEXT = ("base", "pretraining")  # heads that models of images and audio have, too
OTHER_TEXTS = ("dpr", "rag", "mistral4")  # models of texts that have no auto class but the base
NONE = "none of these"
BY_HAND = "## Models that see or hear too\n"
NOT_HERE = "## Not here"
Arrays = dict[str, np.ndarray]


def families(only: str) -> dict[str, dict[str, Any]]:
    """Returns the families by name: those that have a file, and the other published ones."""
    found = {path.stem: json.loads(path.read_text()) for path in FAMILIES.glob("*.json")}
    model_types = [*ALIASES]
    for path in (ROOT / "flaxformer_lite" / "models").glob("*.py"):
        named = re.findall(MODEL_TYPE, path.read_text(), re.MULTILINE)
        model_types += [name for name in named if name.replace("-", "_") == path.stem]
    for name in model_types:
        stem = name.replace("-", "_")
        if stem not in found:
            found[stem] = {"model_type": name, "draws": [DRAWS.get(stem, {})]}
    return {name: found[name] for name in sorted(found) if is_chosen(name, only)}


def is_chosen(name: str, only: str) -> bool:
    return name.startswith(tuple(only.split(",")))


def theirs(out: Path, only: str, store: bool) -> None:
    """Makes the files of each family, and stores what transformers computes."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    out.mkdir(parents=True, exist_ok=True)
    (out / "lacks.json").write_text(json.dumps(lacks(), indent=1))
    for stem, family in families(only).items():
        heads: dict[str, str] = {}
        for number, draw in enumerate(family["draws"]):
            named = classes(family.get("model_type", stem)) | family.get("classes", {})
            if "reference" in family:
                named = importlib.import_module(family["reference"]).CLASSES
            for head, name in named.items():
                if number and head != family.get("head", "lm"):
                    continue  # heads differ in what stands on top
                if head not in family.get("only", [head]):
                    continue
                folder = out / stem / f"{number}_{head}"
                try:
                    outputs = make(name, stem, family, draw, head, folder)
                except Exception as error:
                    print(f"{stem:24s} {number} {name}: {brief(error)}", flush=True)
                    continue
                if number:
                    continue
                heads[name] = recipe.digest(shapes_in(folder))
                if head == family.get("head", "lm"):
                    config = json.loads((folder / "config.json").read_text())
                    family["config"] = config
                    field = "logits" if "logits" in outputs else "last_hidden_state"
                    lengths = family.get("lengths", recipe.LENGTHS)
                    if "encoder_last_hidden_state" in outputs:
                        lengths = recipe.TARGET_LENGTHS
                    pairs = zip(outputs[field], lengths, strict=True)
                    kept = [row[length - 1] for row, length in pairs]
                    family["numbers"] = [[float(f"{x:.7g}") for x in row] for row in kept]
        path = FAMILIES / f"{stem}.json"
        if store and path.exists():
            family["heads"] = heads
            path.write_text(pretty(family))


def lacks() -> dict[str, str]:
    """Returns what each text model of transformers needs that is not here, by model_type."""
    from transformers.models.auto import configuration_auto, modeling_auto

    models = Path(modeling_auto.__file__).parents[1]
    texts = [head for head in HEADS if head not in WITHOUT_TEXT]
    names = {one for head in texts for one in getattr(modeling_auto, HEADS[head])}
    names |= set(OTHER_TEXTS)
    ours = {family.get("model_type", stem) for stem, family in families("").items()}
    found = {}
    for name in sorted(names - ours):
        if reads_text_half(name, ours):
            continue
        folder = models / configuration_auto.model_type_to_module_name(name)
        sources = sorted(folder.glob("modeling_*.py"))
        text = "".join(path.read_text() for path in sources if "_flax" not in path.name)
        parts = (part for part, pattern in LACKS.items() if re.search(pattern, text))
        found[name] = next(parts, NONE)
    return found


def reads_text_half(name: str, ours: set[str]) -> bool:
    """Returns whether a model_type is a wrapper of a text model that is here."""
    import transformers

    specs = transformers.CONFIG_MAPPING[name].sub_configs_defaults
    return "text_config" in specs and specs["text_config"].model_type in ours


def classes(model_type: str) -> dict[str, str]:
    """Returns the classes that transformers has for a model_type, each once, by head."""
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    for head, mapping in HEADS.items():
        name = getattr(modeling_auto, mapping).get(model_type)
        for one in name if isinstance(name, (tuple, list)) else [name]:
            if one and one not in found.values():
                found[head if head not in found else f"{head}_{one}"] = one
    return found


def make(
    name: str, model_type: str, family: dict, draw: dict[str, Any], head: str, folder: Path
) -> Arrays:
    """Writes a model of the recipe's weights, and what it computes."""
    import torch
    import transformers
    from safetensors.numpy import load_file, save_file

    cls = class_of(name)
    known = transformers.AutoConfig.for_model(family.get("model_type", model_type)).to_dict()
    small = {field: value for field, value in SMALL.items() if field in known}
    settings = small | draw | family.get("with_head", {}).get(head, {})
    if head in ("sequence", "token"):
        settings |= {"num_labels": 3}
    if head == "lm" and "masked_lm" in classes(family.get("model_type", model_type)):
        settings |= {"is_decoder": True}
    config = transformers.AutoConfig.for_model(family.get("model_type", model_type), **settings)
    torch.manual_seed(0)
    cls(config).save_pretrained(folder)
    stored = {as_published(one): x for one, x in load_file(folder / "model.safetensors").items()}
    drawn = {
        one: x if "embed_positions" in one and is_sinusoidal(x) else recipe.tensor(one, x.shape)
        for one, x in stored.items()
    }
    save_file(drawn, folder / "model.safetensors", {"format": "pt"})
    model = read(cls, folder)
    two_sided = bool(getattr(config, "is_encoder_decoder", False))
    seq2seq = two_sided and head not in ("encoder", "lm")
    shifts = head in ("sequence", "token", "question")  # the inputs are the decoder's, too
    given = recipe.inputs(
        settings["vocab_size"],
        config.pad_token_id,
        seq2seq=seq2seq and not shifts,
        lengths=tuple(family.get("lengths", recipe.LENGTHS)),
    )
    if seq2seq and head == "sequence":  # which reads the end of the sequence
        ends = given["attention_mask"].sum(axis=1) - 1
        given["input_ids"][np.arange(len(ends)), ends] = config.eos_token_id
    if head == "choice":
        given = {key: np.stack([x, x[::-1]], axis=1) for key, x in given.items()}
    outputs = forward(model, given)
    arrays = {f"in/{key}": x for key, x in given.items()}
    arrays |= {f"out/{key}": x for key, x in outputs.items()}
    writes = head in ("lm", "seq2seq") and "is_decoder" not in settings
    is_first = folder.name.startswith("0_")
    if writes and is_first:
        arrays["greedy"] = greedy(model, given)
    labels = labels_of(head, name, given, settings["vocab_size"]) if is_first else {}
    if labels:
        arrays |= {f"label/{key}": x for key, x in labels.items()}
        if head == "lm" and not shifts_labels(cls):
            shifted = np.full_like(labels["labels"], IGNORED)
            shifted[:, :-1] = labels["labels"][:, 1:]
            labels = {"labels": shifted}
        arrays["loss"] = write_gradient(model, given | labels, folder / "gradient")
    np.savez(folder / "expected.npz", **arrays)
    return outputs


def class_of(name: str) -> Any:
    """Returns a class of transformers, or of a reference of ours where it has none."""
    import transformers

    if hasattr(transformers, name):
        return getattr(transformers, name)
    from tools import jina_bert

    return getattr(jina_bert, name)


def labels_of(head: str, name: str, given: Arrays, vocab_size: int) -> Arrays:
    """Draws the labels of a class, by their names in transformers; none where it has no loss."""
    rng = np.random.default_rng([zlib.crc32(name.encode())])
    kind = head.split(f"_{name}")[0]
    ids = given["decoder_input_ids" if "decoder_input_ids" in given else "input_ids"]
    mask = given.get("decoder_attention_mask", given["attention_mask"])
    rows = len(ids)
    texts = rng.integers(5, vocab_size, ids.shape)
    match kind:
        case "lm":
            return {"labels": np.where(mask, ids, IGNORED)}
        case "masked_lm" | "seq2seq":
            return {"labels": np.where(mask, texts, IGNORED)}
        case "pretraining" if "Electra" in name:
            return {"labels": texts % 2}
        case "pretraining":
            pair = "sentence_order_label" if "Albert" in name else "next_sentence_label"
            return {"labels": np.where(mask, texts, IGNORED), pair: np.arange(rows) % 2}
        case "sequence" | "next_sentence" | "choice":
            return {"labels": np.arange(rows) % 2}
        case "token":
            return {"labels": np.where(mask, texts % 3, IGNORED)}
        case "question":
            return {"start_positions": np.arange(rows), "end_positions": np.arange(rows) + 2}
    return {}


def shifts_labels(cls: Any) -> bool:
    """Returns whether a causal language model's loss is of the next token; BART's leaves it out."""
    return "CrossEntropyLoss" not in inspect.getsource(cls.forward)


def write_gradient(model: Any, given: Arrays, folder: Path) -> np.ndarray:
    """Writes the gradient of the loss in the place of the weights; returns the loss."""
    import torch

    loss = model(**{key: torch.tensor(x).long() for key, x in given.items()}).loss
    loss.backward()
    for name, one in model.named_parameters():
        table = "embed_positions" in name and is_sinusoidal(one.detach().numpy())
        if one.requires_grad and not table:  # tables of sines stay as they are
            one.data = torch.zeros_like(one) if one.grad is None else one.grad
    for name, buffer in model.named_buffers():
        if name.endswith(("final_logits_bias", "e_score_correction_bias", "layer_scalar")):
            buffer.zero_()
    model.save_pretrained(folder)
    return loss.detach().numpy()


def as_published(name: str) -> str:
    """Returns the name of a tensor in published files, where transformers 5.23 writes another.

    It undoes the renamings of its loader, which are older than the files (ESM).
    """
    for written, published in WRITTEN_NAMES.items():
        name = name.replace(written, published)
    return name


def is_sinusoidal(table: np.ndarray) -> bool:
    """Returns whether a table of positions is computed: its first row is sines and cosines of 0."""
    return bool(np.isin(table[0], (0, 1)).all() and table[0].any())


def read(cls: Any, folder: Path) -> Any:
    """Loads a model in float32; every tensor must find its place."""
    import torch

    config = json.loads((folder / "config.json").read_text())
    # Falcon's eager attention adds its ALiBi twice, as the mask holds it already.
    attention = "sdpa" if config.get("alibi") else "eager"
    if cls.__name__.startswith("NllbMoe"):
        mend_nllb_moe()
    model, info = cls.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, output_loading_info=True
    )
    if faults := {what: names for what, names in info.items() if names}:
        raise ValueError(f"transformers reports {faults}")
    return model.eval()


def mend_nllb_moe() -> None:
    """Gives NLLB-MoE the function that it had before transformers 5, which its files are for.

    In 5.23 the experts take the columns of a one-hot mask for numbers of experts: expert 1 computes
    the first choice of every token, and expert 0 its second.
    """
    from transformers.models.nllb_moe import modeling_nllb_moe as nllb_moe

    def forward(self: Any, x: Any, router_mask: Any, router_probs: Any) -> Any:
        parts = [self[f"expert_{i}"](x) * router_probs[:, i, None] for i in range(self.num_experts)]
        return sum(parts) * (1 - self.moe_token_dropout)  # as outside of training

    nllb_moe.NllbMoeExperts.forward = forward


def forward(model: Any, given: Arrays) -> Arrays:
    import torch

    with torch.no_grad():
        output = model(**{key: torch.tensor(x).long() for key, x in given.items()})
    names = (
        "logits",
        "last_hidden_state",
        "pooler_output",
        "text_embeds",
        "prediction_logits",
        "seq_relationship_logits",
        "sop_logits",
        "start_logits",
        "end_logits",
        "encoder_last_hidden_state",
    )
    return {key: output[key].numpy() for key in names if output.get(key) is not None}


def greedy(model: Any, given: Arrays) -> np.ndarray:
    """Returns the greedy continuation of the first row, which has no padding."""
    import torch

    ids = torch.tensor(given["input_ids"][:1]).long()
    for name in ("forced_eos_token_id", "forced_bos_token_id"):
        setattr(model.generation_config, name, None)
    model.generation_config.eos_token_id = model.config.vocab_size  # an id that nothing has
    made = model.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS, num_beams=1)
    return made[0, -NEW_TOKENS:].numpy()


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "numpy") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def ours(out: Path, only: str) -> None:
    """Loads each, compares, generates, and saves it again."""
    import functools

    import jax
    import parity

    from flaxformer_lite import load_pretrained, save_pretrained

    rows = json.loads((out / "ours.json").read_text()) if (out / "ours.json").exists() else {}
    for folder in folders(out, only):
        with np.load(folder / "expected.npz") as file:
            stored = dict(file)
        given = parity.part(stored, "in/")
        due = parity.part(stored, "out/")
        labels = parity.part(stored, "label/")
        case = str(folder.relative_to(out))
        row: dict[str, Any] = {}
        try:
            model, params = load_pretrained(folder)
            if labels:
                step = functools.partial(loss_of, model, given, labels, tuple(due))
                (loss, got), gradient = jax.jit(jax.value_and_grad(step, has_aux=True))(params)
                row["loss"] = float(abs(loss / stored["loss"] - 1))
                _, theirs = load_pretrained(folder / "gradient")
                row["gradient"] = gradient_error(gradient, theirs)
            else:
                output = jax.jit(functools.partial(model.apply, **given))({"params": params})
                got = {key: getattr(output, key) for key in due}
            got = {key: np.asarray(x, np.float32) for key, x in got.items()}
            row["read"] = parity.error(got, due, given)
            if "greedy" in stored:
                row["greedy"] = bool(
                    np.array_equal(continuation(model, params, given), stored["greedy"])
                )
            save_pretrained(folder / "again", model, params)
            np.savez(folder / "again" / "outputs.npz", **got)
        except Exception as error:  # told in the table
            row["refused"] = brief(error)
        rows[case] = row
        print(f"{case:40s} {row}", flush=True)
    (out / "ours.json").write_text(json.dumps(rows, indent=1))


def loss_of(
    model: Any, given: Arrays, labels: Arrays, fields: tuple[str, ...], params: Any
) -> tuple[Any, dict[str, Any]]:
    """Returns the cross-entropy of labels as transformers has it, and fields of the output."""
    import jax.numpy as jnp
    import optax

    def mean(logits: Any, labels: np.ndarray) -> Any:
        kept = labels != IGNORED
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, np.where(kept, labels, 0))
        return jnp.where(kept, losses, 0.0).sum() / kept.sum()

    output = model.apply({"params": params}, **given)
    computed = {key: getattr(output, key) for key in fields}
    if "start_positions" in labels:
        start = mean(output.start_logits, labels["start_positions"])
        loss = (start + mean(output.end_logits, labels["end_positions"])) / 2
    elif output.prediction_logits is not None:
        pairs = output.sop_logits
        if pairs is None:
            pairs = output.seq_relationship_logits
        (pair,) = (labels[key] for key in labels if key != "labels")
        loss = mean(output.prediction_logits, labels["labels"]) + mean(pairs, pair)
    elif output.logits.shape == labels["labels"].shape:  # ELECTRA: one logit a token
        losses = optax.sigmoid_binary_cross_entropy(output.logits, labels["labels"])
        kept = given["attention_mask"] == 1
        loss = jnp.where(kept, losses, 0.0).sum() / kept.sum()
    elif model.cfg.head in ("lm", "causal_lm") and "decoder_input_ids" not in given:
        loss = mean(output.logits[:, :-1], labels["labels"][:, 1:])
    else:
        loss = mean(output.logits, labels["labels"])
    return loss, computed


def gradient_error(got: Any, due: Any) -> float:
    """Returns the largest difference of any tensor, relative to its largest value."""
    import jax

    ours = [np.asarray(leaf) for leaf in jax.tree.leaves(got)]
    theirs = [np.asarray(leaf) for leaf in jax.tree.leaves(due)]
    least = SHARE_OF_LARGEST * max(np.abs(x).max() for x in theirs)
    errors = [
        np.abs(x - y).max() / max(np.abs(y).max(), least) for x, y in zip(ours, theirs, strict=True)
    ]
    return float(max(errors))


def continuation(model: Any, params: Any, given: Arrays) -> np.ndarray:
    """Returns our greedy continuation of the first row."""
    from flaxformer_lite.inference.generate import generate

    made = generate(
        model,
        params,
        given["input_ids"][:1],
        max_new_tokens=NEW_TOKENS,
        temperature=0.0,
        eos_token_id=None,
    )
    return np.asarray(made)[0, -NEW_TOKENS:]


def back(out: Path, only: str) -> None:
    """Loads what was saved here into transformers, and compares."""
    import parity
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = json.loads((out / "ours.json").read_text())
    for folder in folders(out, only):
        row = rows[str(folder.relative_to(out))]
        if "read" not in row or not (folder / "again" / "outputs.npz").exists():
            continue
        with np.load(folder / "expected.npz") as file:
            given = parity.part(dict(file), "in/")
        with np.load(folder / "again" / "outputs.npz") as file:
            due = dict(file)
        try:
            name = json.loads((folder / "again" / "config.json").read_text())["architectures"][0]
            got = forward(read(class_of(name), folder / "again"), given)
            row["written"] = parity.error(got, due, given)
        except Exception as error:
            row["refused"] = f"back: {brief(error)}"
        print(f"{folder.relative_to(out)!s:40s} {row}", flush=True)
    rows["versions"] = f"transformers {transformers.__version__}"
    (out / "ours.json").write_text(json.dumps(rows, indent=1))
    wrong = [case for case, row in rows.items() if case != "versions" and not is_green(row)]
    print(f"{len(rows) - 1 - len(wrong)} of {len(rows) - 1} green; not green: {wrong}")
    sys.exit(bool(wrong))


def is_green(row: dict[str, Any]) -> bool:
    numbers = [row.get("read", np.inf), row.get("written", np.inf), row.get("loss", 0.0)]
    is_near = max(numbers) <= TOLERANCE and row.get("gradient", 0.0) <= GRADIENT_TOLERANCE
    return is_near and row.get("greedy", True)


def folders(out: Path, only: str) -> list[Path]:
    paths = sorted(out.glob("*/*/expected.npz"))
    return [path.parent for path in paths if is_chosen(path.parts[-3], only)]


def table(out: Path) -> None:
    """Writes the page: a row for each family, the largest difference of any draw for each head."""
    rows = json.loads((out / "ours.json").read_text())
    versions = rows.pop("versions", "")
    cells: dict[str, dict[str, list[dict]]] = {}
    for case, row in rows.items():
        family, _, rest = case.partition("/")
        head = rest.split("_", 1)[1]
        head = head if head in COLUMNS else next(name for name in HEADS if head.startswith(name))
        cells.setdefault(family, {}).setdefault(head, []).append(row)
    names = [name for name in COLUMNS if any(name in heads for heads in cells.values())]
    today = datetime.date.today().isoformat()
    green = [
        family
        for family, heads in cells.items()
        if all(is_green(row) for draws in heads.values() for row in draws)
    ]
    lines = [
        "# Families",
        "",
        f"{len(cells)} families in both directions, against {versions}, {today};"
        f" {len(green)} with every head within {TOLERANCE:.0e}. Each cell is the largest difference"
        " of the outputs, relative to their largest value: read here / written here and read by"
        " torch, over all draws; greedy ids are equal where a model writes. The last columns are"
        " those of one training step, over all heads with labels: the difference of the loss, and"
        " of the gradient of any tensor, relative to the tensor's largest value (green up to"
        f" {GRADIENT_TOLERANCE:.0e}); they are blank where no head has labels. Made by `make"
        " scoreboard TORCH=PYTHON`.",
        "",
        "| family | " + " | ".join([*names, "loss", "gradient"]) + " |",
        "|---|" + "---|" * (len(names) + 2),
    ]
    for family, heads in sorted(cells.items()):
        filled = [cell(heads.get(name)) for name in names]
        filled += [largest(heads, "loss"), largest(heads, "gradient")]
        lines.append(f"| {family} | " + " | ".join(filled) + " |")
    lines += ["", written_by_hand(PAGE.read_text())]
    lines += [*missing(json.loads((out / "lacks.json").read_text()), len(cells))]
    PAGE.write_text("\n".join(lines) + "\n")


def written_by_hand(page: str) -> str:
    """Returns the section of the page on wrappers, which this tool does not make."""
    section = page.partition(BY_HAND)[2].partition(NOT_HERE)[0]
    return f"{BY_HAND}{section.rstrip()}\n"


def missing(lacks: dict[str, str], ours: int) -> list[str]:
    """Returns the lines on families of transformers that are not here, by what they need."""
    lines = [
        NOT_HERE,
        "",
        f"Of {len(lacks) + ours} model types with which transformers writes, fills in, classifies"
        f" or encodes text, {len(lacks)} are not here. They are listed by the first part that"
        " their source names and this package lacks. The source of the last names none of these"
        " parts, and many of them need a family file alone.",
        "",
        "| lacks | model types |",
        "|---|---|",
    ]
    for part in (*LACKS, NONE):
        names = [name for name, lacking in lacks.items() if lacking == part]
        if names:
            lines.append(f"| {part} ({len(names)}) | {', '.join(names)} |")
    return lines


def largest(heads: dict[str, list[dict]], key: str) -> str:
    values = [row[key] for rows in heads.values() for row in rows if key in row]
    return f"{max(values):.0e}" if values else ""


def cell(rows: list[dict] | None) -> str:
    if rows is None:
        return ""
    if refused := [row for row in rows if "refused" in row]:
        return refused[0]["refused"].replace("|", "/")[:60]
    worst = [max(row.get(key, np.inf) for row in rows) for key in ("read", "written")]
    wrong = "" if all(row.get("greedy", True) for row in rows) else " other ids"
    return f"{worst[0]:.0e} / {worst[1]:.0e}{wrong}"


def pretty(family: dict[str, Any]) -> str:
    """Writes one field a line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in family.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def brief(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("theirs", "ours", "back", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="families whose name begins so; A,B for several")
    parser.add_argument(
        "--store", action="store_true", help="write the numbers of the first draw for the tests"
    )
    options = parser.parse_args()
    match options.step:
        case "theirs":
            theirs(options.folder, options.only, options.store)
        case "ours":
            ours(options.folder, options.only)
        case "back":
            back(options.folder, options.only)
        case "table":
            table(options.folder)


if __name__ == "__main__":
    main()
