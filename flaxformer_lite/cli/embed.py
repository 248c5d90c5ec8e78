"""Prints or writes the vectors of texts."""

import argparse

import numpy as np

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.open_model import folder_of, notice, notices, open_model
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.embed import embed
from flaxformer_lite.open_model import load_sentence_layers
from flaxformer_lite.pretrained.sentences import SentenceLayers

MOST = 12  # most texts with similarities that fit on a screen


def run(args: argparse.Namespace) -> None:
    """Prints similarities, or writes vectors."""
    file = command_line.read_text(args.file, f"--file={args.file}") if args.file is not None else ""
    texts = args.text + [line for line in file.splitlines() if line.strip()]
    if not texts:
        raise ConfigError("no text: pass --text TEXT, several times to compare, or --file FILE.")
    allowed = args.allow_plugins
    layers = load_sentence_layers(folder_of(args.model), allow_plugins=allowed)
    prompt = layers.prompt(args.prompt_name) if args.prompt is None else args.prompt
    if prompt and args.prompt is None and args.prompt_name is None:
        notice(f"before each text, as this model asks: {prompt!r}; --prompt '' for none.")
    opened = open_model(args.model, dtype=args.dtype, family=args.family, allow_plugins=allowed)
    with notices():
        vectors = embed(opened, texts, layers, prompt=prompt)
    if args.out:
        np.save(args.out, vectors)
        print(f"{args.out}: {vectors.shape[0]} vectors of {vectors.shape[1]}, float32")
    else:
        _print(texts, vectors)


def _print(texts: list[str], vectors: np.ndarray) -> None:
    if len(texts) > MOST:
        raise ConfigError(
            f"{len(texts)} texts: a screen has room for {MOST}; --out FILE.npy saves the vectors."
        )
    units = SentenceLayers().finish(vectors)
    numbers = [str(i + 1) for i in range(len(texts))]
    rows = []
    for number, cosines, text in zip(numbers, units @ units.T, texts, strict=True):
        rows.append([number, *(f"{cosine:.4f}" for cosine in cosines), text])
    print_table(["", *numbers, ""], rows, right=range(1, len(texts) + 1))
