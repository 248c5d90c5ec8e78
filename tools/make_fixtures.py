"""Writes the tiny reference checkpoints of tests/fixtures: weights, inputs and what torch
transformers makes of them.

    python3.11 -m venv /tmp/reference
    /tmp/reference/bin/pip install torch==2.13.0 transformers==5.23.0 safetensors numpy
    /tmp/reference/bin/python tools/make_fixtures.py --out tests/fixtures

Runs only where torch and transformers are installed; nothing else in the project needs them. With
the default seed the files come out the same again; `--seed` draws other weights, inputs and sizes,
for a parity run on something fresh.

A fixture is a directory as save_pretrained leaves it, and expected.npz. Its keys (a case: default,
plain, positions):

    <case>/in/<keyword>    the model's inputs; rows of unequal length, padded on the right
    <case>/out/<field>     the output record in float32; compare where attention_mask is 1
    loss/...               labels aligned with the logits (-100: ignored), the mean cross entropy
    grads/<parameter>      its gradients
    generate/in/<keyword>  prompts of unequal length, padded on the left (encoders': on the right)
    generate/<way>/...     sequences, and sequences_scores (beams) or logprobs of the new tokens

manifest.json names every fixture with its head, cases and generation arguments; processors.npz
holds the sampling filters.
"""

import argparse
import json
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from fixture_generation import Dull, generation, processors
from fixture_inputs import Arrays, text
from fixture_specs import AUTO_CLASSES, TWO_SIDED, Spec, specs
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedModel

LENGTHS = (9, 6)
TARGET_LENGTHS = (7, 4)
IGNORED = -100
SIZES = {
    "vocab_size",
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "d_ff",
    "encoder_ffn_dim",
    "hidden_dim",
}


def main() -> None:
    """Makes the fixtures named on the command line, or all of them, and the manifest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("tests/fixtures"))
    parser.add_argument(
        "--only", nargs="*", default=(), help="fixture names; the others in the manifest are kept"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="0 makes the stored fixtures; others also vary the sizes",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    chosen = [spec for spec in specs() if not options.only or spec.name in options.only]
    if unknown := set(options.only) - {spec.name for spec in chosen}:
        sys.exit(f"no such fixture: {', '.join(sorted(unknown))}")

    manifest_path = options.out / "manifest.json"
    manifest = (
        json.loads(manifest_path.read_text())
        if options.only and manifest_path.exists()
        else {"fixtures": {}}
    )
    manifest["torch"] = torch.__version__
    manifest["transformers"] = transformers.__version__
    for spec in chosen:
        folder = options.out / spec.name
        row, gap = draw(spec, folder, options.seed)
        manifest["fixtures"][spec.name] = row
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(
            f"{spec.name:40s} {size / 1024:6.1f} KB   float32 against float64 {gap:.1e}  "
            f" {row['note']}",
            flush=True,
        )
        row.pop("note")
    np.savez_compressed(options.out / "processors.npz", **processors(options.seed))
    rows = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(row)}"
        for name, row in manifest.pop("fixtures").items()
    )
    head = json.dumps(manifest)[1:-1]
    manifest_path.write_text(f'{{{head}, "fixtures": {{\n{rows}\n}}}}\n')


def draw(spec: Spec, folder: Path, seed: int) -> tuple[dict[str, Any], float]:
    """Makes a fixture, with other weights where the first ones generate nothing worth comparing."""
    for attempt in range(9):
        try:
            rng = np.random.default_rng([seed, attempt, zlib.crc32(spec.name.encode())])
            return make(spec, folder, rng, jitter=seed != 0)
        except Dull:
            continue
    raise Dull(spec.name)


def make(
    spec: Spec, folder: Path, rng: np.random.Generator, *, jitter: bool
) -> tuple[dict[str, Any], float]:
    """Writes one fixture; returns its row of the manifest and the rounding error of its float32
    logits."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_checkpoint(spec, folder, rng, jitter=jitter)
    model = read_checkpoint(spec, folder)
    arrays: Arrays = {}
    for case in ("default", *spec.cases):
        inputs = case_inputs(spec, model, case, rng)
        outputs = forward(model, inputs)
        arrays |= {f"{case}/in/{key}": value for key, value in inputs.items()}
        arrays |= {f"{case}/out/{key}": value for key, value in outputs.items()}
    gap = rounding(model, arrays)
    if spec.grads:
        arrays |= gradients(spec, model, folder, arrays, rng)
    row = {
        "model_type": spec.model_type,
        "head": spec.head,
        "kind": spec.kind,
        "architecture": type(model).__name__,
        "file_dtype": spec.file_dtype,
        "cases": ["default", *spec.cases],
        "grads": spec.grads,
        "note": "",
    }
    if spec.head in ("lm", "conditional_generation"):
        row["generate"], found, row["note"] = generation(spec, model, rng)
        arrays |= found
    np.savez_compressed(
        folder / "expected.npz", **{key: narrow(value) for key, value in arrays.items()}
    )
    return row, gap


def write_checkpoint(spec: Spec, folder: Path, rng: np.random.Generator, *, jitter: bool) -> None:
    """Saves a model whose every trained parameter is random, norms and biases too, spelled as
    `spec.published` says."""
    settings = dict(spec.config)
    if jitter:
        for key in SIZES & set(settings):
            settings[key] += int(rng.integers(0, 16))
    config = AutoConfig.for_model(spec.model_type, **settings)
    model = auto_class(spec).from_config(config, attn_implementation="eager")
    for name in spec.untied:
        owner, leaf = name.rsplit(".", 1)
        setattr(
            model.get_submodule(owner),
            leaf,
            torch.nn.Parameter(model.get_parameter(name).detach().clone()),
        )
        model.all_tied_weights_keys.pop(name, None)
    randomise(model, rng)
    if spec.without_encoder:
        silence_cross_attention(model)
    model.to(getattr(torch, spec.file_dtype)).save_pretrained(
        folder, max_shard_size=spec.shard_size or "1GB"
    )
    if spec.published:
        path = folder / "config.json"
        merged = json.loads(path.read_text()) | spec.published
        path.write_text(
            json.dumps({k: v for k, v in merged.items() if v is not None}, indent=2) + "\n"
        )


@torch.no_grad()
def randomise(model: PreTrainedModel, rng: np.random.Generator) -> None:
    """Adds normal noise to every parameter that is trained, and to the bias of the logits where it
    is a buffer."""
    scaled = getattr(model.config, "scale_embedding", False) or model.config.model_type.startswith(
        "gemma"
    )
    for name, module in model.named_modules():
        for leaf, tensor in [
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ]:
            if leaf != "final_logits_bias" and not (
                isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
            ):
                continue
            if tensor.ndim == 1 or leaf == "final_logits_bias":
                stddev = 0.2
                mean = tensor
            elif isinstance(module, torch.nn.Embedding):
                stddev = 0.25 if scaled else 0.6
                mean = 0.0
            else:
                fan_in = tensor.shape[0 if type(module).__name__ == "Conv1D" else 1]
                # T5 does not divide its scores by sqrt(head_dim)
                gain = 0.5 if name.endswith(".q") else 1.3
                stddev = gain * fan_in**-0.5
                mean = 0.0
            tensor.copy_(mean + torch.from_numpy(stddev * rng.standard_normal(tensor.shape)))


@torch.no_grad()
def silence_cross_attention(model: PreTrainedModel) -> None:
    """Clears the cross-attention of a decoder without an encoder, which computes nothing."""
    for name, tensor in model.named_parameters():
        if "encoder_attn" in name:
            tensor.fill_(float(name.endswith("layer_norm.weight")))


def read_checkpoint(spec: Spec, folder: Path) -> PreTrainedModel:
    """Loads what was written, in float32, and insists that every tensor found its place."""
    model, info = auto_class(spec).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    if faults := {key: value for key, value in info.items() if value}:
        raise RuntimeError(f"{spec.name}: {faults}")
    for name in spec.untied:
        if torch.equal(model.get_parameter(name), model.get_input_embeddings().weight):
            raise RuntimeError(f"{spec.name}: {name} came back tied")
    return model.eval()


def auto_class(spec: Spec) -> Any:
    """Returns the transformers class that loads this head."""
    return getattr(transformers, AUTO_CLASSES[spec.head])


def case_inputs(spec: Spec, model: PreTrainedModel, case: str, rng: np.random.Generator) -> Arrays:
    """Returns keyword arguments of one forward pass, as numpy arrays."""
    lengths = LENGTHS[:1] if case == "plain" else LENGTHS
    inputs = text(model, lengths, rng, choices=3 if spec.head == "multiple_choice" else 0)
    if spec.model_type in TWO_SIDED and spec.head == "sequence_classification":
        for row, length in zip(inputs["input_ids"], lengths, strict=True):
            row[length - 1] = model.config.eos_token_id  # which the head reads
    if spec.kind == "seq2seq":
        target = text(model, TARGET_LENGTHS[: len(lengths)], rng)
        inputs |= {f"decoder_{key}": value for key, value in target.items()}
    if spec.token_types:
        drawn = rng.integers(0, 2, inputs["input_ids"].shape)
        inputs["token_type_ids"] = drawn * inputs["attention_mask"]
    if case == "positions":
        drawn = [
            np.sort(rng.choice(np.arange(2, 14), max(LENGTHS), replace=False)) for _ in LENGTHS
        ]
        inputs["position_ids"] = np.stack(drawn)
    if case == "plain":
        inputs = {key: value for key, value in inputs.items() if key == "input_ids"}
    return inputs


def forward(model: PreTrainedModel, inputs: Arrays) -> Arrays:
    """Returns every array of the output record."""
    with torch.no_grad():
        outputs = model(
            **{key: torch.from_numpy(np.asarray(value, np.int64)) for key, value in inputs.items()}
        )
    return {key: value.numpy() for key, value in outputs.items() if isinstance(value, torch.Tensor)}


def rounding(model: PreTrainedModel, arrays: Arrays) -> float:
    """Returns the largest relative distance of float32 outputs from float64 ones, a lower bound on
    any tolerance."""
    inputs = {
        key.removeprefix("default/in/"): value
        for key, value in arrays.items()
        if key.startswith("default/in/")
    }
    masks = {
        inputs[key].shape: inputs[key].astype(bool)
        for key in inputs
        if key.endswith("attention_mask")
    }
    precise = forward(model.double(), inputs)
    model.float()
    gaps = []
    for key, value in precise.items():
        keep = masks.get(value.shape[:2], ...)
        gaps.append(
            np.abs(arrays[f"default/out/{key}"] - value)[keep].max() / np.abs(value[keep]).max()
        )
    return float(max(gaps))


def gradients(
    spec: Spec, model: PreTrainedModel, folder: Path, arrays: Arrays, rng: np.random.Generator
) -> Arrays:
    """Returns labels, the mean cross entropy over them, and its gradient for every tensor of the
    file."""
    inputs = {
        key.removeprefix("default/in/"): value
        for key, value in arrays.items()
        if key.startswith("default/in/")
    }
    outputs = model(
        **{key: torch.from_numpy(np.asarray(value, np.int64)) for key, value in inputs.items()}
    )
    prefix = "decoder_" if spec.kind == "seq2seq" else ""
    mask = inputs[f"{prefix}attention_mask"]
    ids = inputs[f"{prefix}input_ids"]
    if spec.kind == "decoder":
        labels = np.where(np.roll(mask, -1, 1), np.roll(ids, -1, 1), IGNORED)
        labels[:, -1] = IGNORED
    else:
        labels = np.where(
            mask.astype(bool) & (rng.random(ids.shape) < 0.7),
            rng.integers(5, 60, ids.shape),
            IGNORED,
        )
    found: Arrays = {"loss/labels": labels}
    logits = outputs.prediction_logits if spec.head == "pretraining" else outputs.logits
    entropy = torch.nn.functional.cross_entropy
    loss = entropy(logits.flatten(0, 1), torch.from_numpy(labels).flatten(), ignore_index=IGNORED)
    if spec.head == "pretraining":
        found["loss/next_sentence_label"] = np.array([1, 0])
        loss = loss + entropy(outputs.seq_relationship_logits, torch.tensor([1, 0]))
    loss.backward()
    found["loss/loss"] = loss.detach().numpy()
    grads = {
        name: parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    model.zero_grad(set_to_none=True)
    with safe_open(folder / "model.safetensors", "np") as file:
        stored = set(file.keys()) - {"final_logits_bias"}
    if set(grads) != stored:
        raise RuntimeError(f"{spec.name}: gradients and file differ in {set(grads) ^ stored}")
    return found | {f"grads/{name}": value for name, value in grads.items()}


def narrow(value: Any) -> np.ndarray:
    """Integers as int32, everything else as float32."""
    value = np.asarray(value)
    return value.astype(np.int32 if np.issubdtype(value.dtype, np.integer) else np.float32)


if __name__ == "__main__":
    main()
