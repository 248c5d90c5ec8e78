"""Writes the outputs of transformers for a folder of weights, as `verify --reference` reads them.

    python tools/reference_outputs.py WEIGHTS OUTPUT

Needs torch and transformers. OUTPUT then holds inputs.npz and outputs.npz: the arguments of the
model and the fields of its output, by the names that both libraries have for them. Numbers of any
other program, such as a run's own, are written in the same way.
"""

import argparse
import importlib
from pathlib import Path

import numpy as np

FIELDS = ("logits", "last_hidden_state", "pooler_output", "encoder_last_hidden_state")
LENGTHS = (24, 15)  # tokens of two texts; the second is padded


def main() -> None:
    """Runs the first class that `architectures` in config.json names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("weights", type=Path, help="folder of save_pretrained")
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the ids")
    args = parser.parse_args()
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.from_pretrained(args.weights)
    kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
    model = kind.from_pretrained(args.weights, dtype=torch.float32).eval()
    ids = np.random.default_rng(args.seed).integers(3, config.vocab_size, (2, max(LENGTHS)))
    keep = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    pad = config.pad_token_id or 0
    inputs = {"input_ids": np.where(keep, ids, pad), "attention_mask": keep}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, :9]
    inputs = {name: array.astype(np.int32) for name, array in inputs.items()}
    with torch.no_grad():
        output = model(**{name: torch.tensor(x).long() for name, x in inputs.items()})
    found = {name: getattr(output, name, None) for name in FIELDS}
    args.output.mkdir(parents=True, exist_ok=True)
    np.savez(args.output / "inputs.npz", **inputs)
    arrays = {name: x.numpy() for name, x in found.items() if x is not None}
    np.savez(args.output / "outputs.npz", **arrays)
    print(f"{args.output}: {kind.__name__}, {', '.join(arrays)}")


if __name__ == "__main__":
    main()
