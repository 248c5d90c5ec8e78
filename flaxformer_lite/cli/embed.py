"""Prints or writes the vectors of texts."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.open_model import (
    folder_of,
    load_named_layers,
    open_named_model,
    print_notice,
    print_warnings,
)
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.publish import new_file
from flaxformer_lite.inference.embed import Vectors, embed, similarity
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_SIMILARITY_TEXTS = 12  # most texts with similarities that fit on a screen
SHOWN_TOKENS = 10  # of a sparse vector that are printed
SUFFIX = {"dense": ".npy", "sparse": ".npz", "multi_vector": ".npz"}


def run(args: argparse.Namespace) -> None:
    """Prints similarities, or writes vectors."""
    file = command_line.read_text(args.file, f"--file={args.file}") if args.file is not None else ""
    texts = args.text + [line for line in file.splitlines() if line.strip()]
    if not texts:
        raise ConfigError("no text: pass --text TEXT, several times to compare, or --file FILE.")
    folder = folder_of(args.model)
    layers = load_named_layers(args, folder)
    _check_output(args.output, layers.kind)
    if args.prompt is not None:
        prompt = dict(layers.prompts).get(args.prompt, args.prompt)
    else:
        prompt = layers.prompt_of(args.task)
        if prompt:
            print_notice(f"before each text, as this model asks: {prompt!r}; --prompt '' for none.")
    opened = open_named_model(args, folder=folder)
    with print_warnings():
        vectors = embed(opened, texts, layers, prompt=prompt, task=args.task)
    if args.output:
        print(f"{args.output}: {_saved(args.output, vectors)}, float32")
        return
    if len(texts) > MAX_SIMILARITY_TEXTS:
        raise ConfigError(
            f"{len(texts)} texts: a screen has room for {MAX_SIMILARITY_TEXTS};"
            f" --output FILE{SUFFIX[layers.kind]} saves the vectors."
        )
    if layers.kind == "sparse":
        _print_tokens(texts, vectors, opened.tokenizer)
    if layers.kind == "dense":  # by cosine, also where the authors compare by dot product
        layers = layers._replace(similarity="cosine")
    _print(texts, np.asarray(similarity(layers)(vectors, vectors)))


def _check_output(output: Path | None, kind: str) -> None:
    if output is not None and output.suffix != SUFFIX[kind]:
        raise ConfigError(
            f"--output={output}: {kind.replace('_', '-')} vectors are written to a file that ends"
            f" in {SUFFIX[kind]}."
        )


def _saved(output: Path, vectors: Vectors) -> str:
    """Writes vectors; returns a description of them."""
    # "w+b": to a file that is only written, numpy copies without telling why that fails.
    with new_file(output) as made, made.open("w+b") as file:
        if isinstance(vectors, np.ndarray):
            np.save(file, vectors)
            return f"{vectors.shape[0]} vectors of {vectors.shape[1]}"
        if isinstance(vectors, list):  # of the tokens of each text
            lengths = np.asarray([len(one) for one in vectors])
            np.savez(file, vectors=np.concatenate(vectors), lengths=lengths)
            return f"{lengths.sum()} vectors of {vectors[0].shape[1]} for {len(vectors)} texts"
        from scipy import sparse

        sparse.save_npz(file, vectors)
        weights = vectors.nnz / max(1, vectors.shape[0])
        count, width = vectors.shape
        return f"{count} sparse vectors of {width}, on average {weights:.0f} weights"


def _print_tokens(texts: list[str], vectors: "csr_array", tokenizer: PublishedTokenizer) -> None:
    """Prints the tokens of largest weight of each text."""
    for number, text in enumerate(texts):
        weights_V = vectors[[number]].toarray()[0]
        largest = np.argsort(-weights_V, kind="stable")[:SHOWN_TOKENS]
        shown = []
        for i in largest:
            if weights_V[i] > 0:
                shown.append(f"{tokenizer.token(i).strip()} {weights_V[i]:.2f}")
        tokens = ", ".join(shown) or "no token has a weight"
        command_line.print_text(f"{number + 1}: {text}\n   {tokens}")


def _print(texts: list[str], similar_NN: np.ndarray) -> None:
    numbers = [str(i + 1) for i in range(len(texts))]
    rows = []
    for number, values, text in zip(numbers, similar_NN, texts, strict=True):
        rows.append([number, *(f"{value:.4f}" for value in values), text])
    print_table(["", *numbers, ""], rows, right=range(1, len(texts) + 1))
