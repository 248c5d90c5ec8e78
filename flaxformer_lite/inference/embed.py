"""Vectors of texts, computed as sentence-transformers does for the same directory."""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.nn.functions.pooling import pool, to_unit_length
from flaxformer_lite.pretrained.sentences import SentenceLayers
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer
from flaxformer_lite.types import Params

LOG = logging.getLogger("flaxformer_lite")

BATCH = 32  # texts at a time
STEP = 16  # lengths are rounded up to a multiple of this, so that few shapes are compiled
TASKS = ("query", "document")


class Opened(Protocol):
    """A model, its parameters and its tokenizer."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def params(self) -> Params: ...

    @property
    def tokenizer(self) -> PublishedTokenizer: ...

    @property
    def cfg(self) -> ModelConfig: ...


def embed(
    opened: Opened,
    texts: Sequence[str],
    layers: SentenceLayers,
    *,
    prompt: str | None = None,
    task: str = "",
) -> np.ndarray:
    """Computes vectors of texts, float32 [texts, D].

    Args:
      opened: an encoder, a decoder, or an encoder-decoder to use the encoder of.
      texts: the texts.
      layers: the layers after the encoder, and the model's prompts.
      prompt: a prefix of each text; None is that of the task, or the model's default prompt.
      task: `query` or `document`, as `encode_query` and `encode_document` of sentence-transformers;
        "" is neither.
    """
    prefix = layers.prompt_of(task) if prompt is None else prompt
    texts = [prefix + text for text in texts]
    if opened.cfg.skeleton == "embedding":
        raise ConfigError(
            f"family={opened.cfg.family!r}: has vectors of words, not of sentences; see the command"
            " similar."
        )
    pooling = layers.pooling or ("last" if opened.cfg.skeleton == "decoder" else "mean")
    skip = 0 if layers.include_prompt or not prefix else prompt_length(opened, prefix)
    rows = token_rows(opened, texts, limit_of(layers, opened))
    width = opened.cfg.d_model * (1 + pooling.count("+"))
    vectors = np.zeros((len(texts), width), np.float32)
    for chosen, ids_BT, mask_BT in batches(opened, rows):
        pooled = _pooled(opened.model, pooling, skip, opened.params, ids_BT, mask_BT)
        vectors[chosen] = np.asarray(pooled)[: len(chosen)]
    return layers.finish(vectors)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _pooled(
    model: nn.Module,
    pooling: str,
    skip: int,
    params: Params,
    ids_BT: jax.Array,
    mask_BT: jax.Array,
) -> jax.Array:
    x_BTD: Any = model.apply({"params": params}, ids_BT, attention_mask=mask_BT, method="encode")
    return pool(pooling, x_BTD, mask_BT, skip=skip, unit=False)


def token_rows(opened: Opened, texts: Sequence[str], limit: int | None) -> list[list[int]]:
    """Encodes texts; logs a warning if some are longer than `limit` tokens.

    Raises:
      ConfigError: a token is outside the model's vocabulary.
    """
    rows = []
    cut = 0
    for text in texts:
        ids = opened.tokenizer.encode(text, max_length=limit)
        if ids and max(ids) >= opened.cfg.vocab_size:
            raise ConfigError(
                f"the tokenizer gives the id {max(ids)}, but the model's vocabulary ends at"
                f" {opened.cfg.vocab_size - 1}: they do not belong together."
            )
        rows.append(ids)
        if len(ids) == limit and len(opened.tokenizer.encode(text)) > limit:
            cut += 1
    if cut:
        LOG.warning(
            "%d of %d texts are longer than %s tokens, and cut there.", cut, len(texts), limit
        )
    return rows


def batches(opened: Opened, rows: Sequence[Sequence[int]]) -> Any:
    """Yields the numbers of texts of similar length, with their ids and attention mask [B, T]."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        longest = max(1, *(len(rows[i]) for i in chosen))
        width = math.ceil(longest / STEP) * STEP
        if opened.cfg.has_position_table:
            width = min(width, opened.cfg.max_length)
        ids_BT = np.full((min(BATCH, len(order)), width), opened.tokenizer.pad_id, np.int32)
        mask_BT = np.zeros_like(ids_BT)
        for row, i in enumerate(chosen):
            ids_BT[row, : len(rows[i])] = rows[i]
            mask_BT[row, : len(rows[i])] = 1
        yield chosen, ids_BT, mask_BT


def similarity(layers: SentenceLayers) -> Callable[[Any, Any], Any]:
    """Returns the function (vectors a, vectors b) -> similarities [a, b] of a model's vectors.

    Raises:
      ConfigError: the model compares its vectors in another way than by cosine or dot product.
    """
    if layers.similarity == "cosine":
        return _cosines
    if layers.similarity == "dot":
        return _dots
    raise ConfigError(
        f"config_sentence_transformers.json: similarity_fn_name={layers.similarity!r}: not"
        " supported; must be cosine or dot."
    )


@jax.jit
def _cosines(a_AD: jax.Array, b_BD: jax.Array) -> jax.Array:
    return _dots(to_unit_length(a_AD), to_unit_length(b_BD))


@jax.jit
def _dots(a_AD: jax.Array, b_BD: jax.Array) -> jax.Array:
    return jnp.matmul(a_AD, b_BD.T, precision=jax.lax.Precision.HIGHEST)


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
