"""Sentence vectors, computed as sentence-transformers does for the same directory."""

import argparse
import functools
import math

import jax
import numpy as np

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.open_model import Opened, check_vocabulary, folder_of, notice, open_model
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError
from flaxformer_lite.nn.functions.pooling import pool
from flaxformer_lite.open_model import load_sentence_layers
from flaxformer_lite.pretrained.sentences import SentenceLayers

BATCH = 32  # texts at a time
STEP = 16  # lengths are rounded up to a multiple of this, so that few shapes are compiled
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
    vectors = embed(opened, texts, layers, prompt=prompt)
    if args.out:
        np.save(args.out, vectors)
        print(f"{args.out}: {vectors.shape[0]} vectors of {vectors.shape[1]}, float32")
    else:
        _print(texts, vectors)


def embed(
    opened: Opened, texts: list[str], layers: SentenceLayers, *, prompt: str | None = None
) -> np.ndarray:
    """Computes vectors of texts, float32 [texts, D].

    Args:
      opened: an encoder, a decoder, or an encoder-decoder to use the encoder of.
      texts: the texts.
      layers: the layers after the encoder, and the model's prompts.
      prompt: a prefix of each text; None is the model's default prompt, if it has one.
    """
    prefix = layers.prompt() if prompt is None else prompt
    texts = [prefix + text for text in texts]
    if opened.cfg.skeleton == "embedding":
        raise ConfigError(
            f"family={opened.cfg.family!r}: has vectors of words, not of sentences; see the command"
            " similar."
        )
    pooling = layers.pooling or ("last" if opened.cfg.skeleton == "decoder" else "mean")
    skip = 0 if layers.include_prompt or not prefix else prompt_length(opened, prefix)
    limit = limit_of(layers, opened)
    rows = []
    cut = 0
    for text in texts:
        ids = check_vocabulary(opened, opened.tokenizer.encode(text, max_length=limit))
        rows.append(ids)
        if len(ids) == limit and len(opened.tokenizer.encode(text)) > limit:
            cut += 1
    if cut:
        notice(f"{cut} of {len(texts)} texts are longer than {limit} tokens, and cut there.")
    width = opened.cfg.d_model * (1 + pooling.count("+"))
    vectors = np.zeros((len(texts), width), np.float32)
    order = sorted(range(len(texts)), key=lambda i: len(rows[i]))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        most = max(1, *(len(rows[i]) for i in chosen))
        width = math.ceil(most / STEP) * STEP
        if opened.cfg.has_position_table:
            width = min(width, opened.cfg.max_length)
        ids_BT = np.full((min(BATCH, len(order)), width), opened.tokenizer.pad_id, np.int32)
        mask_BT = np.zeros_like(ids_BT)
        for row, i in enumerate(chosen):
            ids_BT[row, : len(rows[i])] = rows[i]
            mask_BT[row, : len(rows[i])] = 1
        pooled = _pooled(opened.model, pooling, skip, opened.params, ids_BT, mask_BT)
        vectors[chosen] = np.asarray(pooled)[: len(chosen)]
    return layers.finish(vectors)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _pooled(model, pooling, skip, params, ids_BT, mask_BT):
    x_BTD = model.apply({"params": params}, ids_BT, attention_mask=mask_BT, method="encode")
    return pool(pooling, x_BTD, mask_BT, skip=skip, unit=False)


def prompt_length(opened: Opened, prompt: str) -> int:
    """Returns how many tokens of a text its prompt takes, without a special token at its end."""
    ids = opened.tokenizer.encode(prompt)
    return len(ids) - int(bool(ids) and ids[-1] in opened.tokenizer.ids.values())


def limit_of(layers: SentenceLayers, opened: Opened) -> int | None:
    """Returns the most tokens of a text, by sentence-transformers, the tokenizer and the model."""
    limits = [layers.limit, opened.tokenizer.max_length]
    if opened.cfg.has_position_table:
        limits.append(opened.cfg.max_length)
    return min(filter(None, limits), default=None)


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
