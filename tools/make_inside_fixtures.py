"""Writes hidden states and attention weights of stored fixtures, as torch transformers computes
them.

    # in the environment of tools/make_fixtures.py
    /tmp/reference/bin/python tools/make_inside_fixtures.py

Keys of tests/fixtures/inside.npz: <fixture>/<field>/<layer>, for the fixture's default case.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import transformers

FIELDS = ("hidden_states", "attentions")
STORED = (
    "bert_base",
    "albert_base",
    "gpt2_lm",
    "llama_lm",
    "gemma2_lm",
    "opt_350m_base",
    "t5_conditional_generation",
    "t5_encoder",
    "bart_conditional_generation",
    "mbart_base",
)


def values(folder: Path, architecture: str) -> dict[str, np.ndarray]:
    """Computes what a fixture's model returns with `output_attentions` and
    `output_hidden_states`."""
    model = getattr(transformers, architecture).from_pretrained(
        folder, attn_implementation="eager", dtype="float32"
    )
    with np.load(folder / "expected.npz") as expected:
        inputs = {
            k.removeprefix("default/in/"): torch.tensor(x)
            for k, x in expected.items()
            if k.startswith("default/in/")
        }
    with torch.no_grad():
        out = model.eval()(**inputs, output_attentions=True, output_hidden_states=True)
    found = {}
    for field, layers in out.items():
        if field.endswith(FIELDS) and layers is not None:
            found |= {f"{field}/{i}": layer.numpy() for i, layer in enumerate(layers)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fixtures", type=Path, default=Path("tests/fixtures"))
    parser.add_argument("--out", type=Path, default=Path("tests/fixtures/inside.npz"))
    parser.add_argument(
        "--only", nargs="*", default=STORED, help="names of fixtures; none after it is all"
    )
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    rows = json.loads((options.fixtures / "manifest.json").read_text())["fixtures"]
    found = {}
    for name in options.only or rows:
        found |= {
            f"{name}/{key}": x
            for key, x in values(options.fixtures / name, rows[name]["architecture"]).items()
        }
    np.savez_compressed(options.out, **found)


if __name__ == "__main__":
    main()
