"""Predictions for masked tokens."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flaxformer_lite.cli.open_model import Opened, open_named_model
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import quote_name
from flaxformer_lite.inference.prompts import check_token_ids
from flaxformer_lite.model_folder import is_workdir
from flaxformer_lite.pretrained import folder, hf_config
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer

HEADS = ("masked_lm", "pretraining")
TOP_K = 5  # guesses that are shown for a mask


def print_guesses(args: argparse.Namespace, where: Path, texts: Sequence[str]) -> None:
    """Prints guesses and their probabilities, for each mask of each text in turn.

    Args:
      args: the flags that open the model, and `top_k`.
      where: the directory of the model.
      texts: texts with [MASK].
    """
    try:
        opened = open_named_model(args, _head(where), folder=where)
    except WeightsError:
        if is_workdir(where) or _published_head(where) in HEADS:
            raise
        raise ConfigError(
            f"{args.model}: an encoder guesses masked words with a masked-LM head, and this one has"
            " none; `embed` makes vectors with it."
        ) from None
    if opened.cfg.head not in HEADS:
        raise ConfigError(
            f"{args.model}: its head is {opened.cfg.head!r}, and an encoder guesses masked words"
            " with a masked-LM head; `predict` reads texts with it."
        )
    guesses: list[list[tuple[str, float]]] = []
    for text in texts:
        guesses += fill(opened, text, args.top_k or TOP_K)
    for number, best in enumerate(guesses, start=1):
        if len(guesses) > 1:
            print(f"mask {number}")
        for token, probability in best:
            print(f"{probability:7.4f}  {quote_name(token)}")


def fill(opened: Opened, text: str, top_k: int) -> list[list[tuple[str, float]]]:
    """Returns the likeliest tokens and their probabilities for each mask, the likeliest first."""
    tokenizer = opened.tokenizer
    cfg = opened.cfg
    if "mask" not in tokenizer.ids:
        raise ConfigError("this model's tokenizer has no mask token.")
    masked = text.replace("[MASK]", tokenizer.tokens["mask"])
    ids = check_token_ids(opened.cfg, tokenizer.encode(masked))
    positions = [at for at, i in enumerate(ids) if i == tokenizer.ids["mask"]]
    if not positions:
        raise ConfigError(
            "--prompt: has no mask, and this model is an encoder; put [MASK] where a word is to be"
            " guessed."
        )
    if cfg.has_position_table and len(ids) > cfg.max_length:
        raise ConfigError(
            f"{len(ids)} tokens, but the model's positions end at {cfg.max_length}; shorten the"
            " text."
        )
    output: Any = opened.model.apply({"params": opened.params}, np.asarray([ids], np.int32))
    logits_TV = (output.logits if cfg.head == "masked_lm" else output.prediction_logits)[0]
    logits_MV = logits_TV[np.asarray(positions)].astype("float32")
    probabilities_MV = np.asarray(jax.nn.softmax(logits_MV, axis=-1))
    return [_best(opened, row_V, top_k) for row_V in probabilities_MV]


def _best(opened: Opened, row_V: np.ndarray, top_k: int) -> list[tuple[str, float]]:
    known_V = row_V[: opened.tokenizer.vocab_size]
    best = np.argsort(-known_V, kind="stable")[:top_k]
    guesses = []
    for i in best:
        guesses.append((spelled(opened.tokenizer, i), float(known_V[i])))
    return guesses


def spelled(tokenizer: PublishedTokenizer, index: int) -> str:
    """Returns a token without the spaces around it, unless it consists of them."""
    token = tokenizer.token(index)
    return token.strip() or repr(token)


def _head(where: Path) -> str | None:
    """Returns the masked-LM head, even if config.json names a larger one.

    None for a workdir, which has one head, and for a config that names none.
    """
    if is_workdir(where) or not folder.read_config(where).get("architectures"):
        return None
    return "masked_lm"


def _published_head(where: Path) -> str:
    _, cfg = hf_config.open_config(folder.read_config(where), where, None, None)
    return cfg.head
