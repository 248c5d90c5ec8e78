"""Vectors of texts, computed as sentence-transformers does for the same directory."""

import collections
import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.first_model import refuse_fork
from flaxformer_lite.inference.prompts import check_token_ids
from flaxformer_lite.nn.functions.maxsim import maxsim
from flaxformer_lite.nn.functions.pooling import pool, to_unit_length
from flaxformer_lite.nn.functions.splade import splade
from flaxformer_lite.pretrained.sentences import LateInteractionSettings, SentenceLayers
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer
from flaxformer_lite.types import Array, Params

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LOG = logging.getLogger("flaxformer_lite")

TEXT_BATCH = 32  # texts at a time
CPU_BATCH = 16  # a CPU is as fast with few texts, and similar ones are padded less
MIN_WIDTH = 8  # tokens of the shortest padded texts
MOST_WIDTHS = 8  # of the batches of one call
# Padded tokens that are cheaper than another program: MiniLM reads 2,300 tokens while one compiles
# (jax 0.10.2, an Intel Xeon). Programs that are kept between processes serve many calls.
COMPILING_TOKENS = 2048
KEPT_TOKENS = 512
TASKS = ("query", "document")
# [texts, D], dense or sparse, or for each text the vectors of its tokens [tokens, D]
Vectors: TypeAlias = "np.ndarray | csr_array | list[np.ndarray]"
# (vectors a, vectors b) -> similarities [a, b], of the kind of vectors that the model makes
Similarity = Callable[..., Array]


class TextModel(Protocol):
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
    opened: TextModel,
    texts: Sequence[str],
    layers: SentenceLayers,
    *,
    prompt: str | None = None,
    task: str = "",
) -> Vectors:
    """Computes vectors of texts, as the kind of `layers` says.

    Args:
      opened: an encoder, a decoder, or an encoder-decoder to use the encoder of.
      texts: the texts.
      layers: the layers after the encoder, and the model's prompts.
      prompt: a prefix of each text; None is the task's, or the model's default prompt.
      task: `query` or `document`, as `encode_query` and `encode_document` of sentence-transformers;
        "" is neither.

    Returns:
      Dense vectors, float32 [texts, D]; sparse ones, a scipy.sparse.csr_array of float32 [texts,
      vocabulary]; or for each text the vectors of its tokens, float32 [tokens, D].
    """
    refuse_fork()
    if isinstance(texts, Iterable) and not isinstance(texts, str):
        texts = list(texts)  # a generator can be read once only
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError("texts: must be a list of texts, such as ['A cat sleeps.'].")
    if prompt is not None and not isinstance(prompt, str):
        raise ConfigError(f"prompt={prompt!r}: must be a text, or None for the task's.")
    if task not in ("", *TASKS):
        raise ConfigError(f"task={task!r}: must be query or document.")
    prefix = layers.prompt_of(task) if prompt is None else prompt
    texts = [prefix + text for text in texts]
    if not hasattr(type(opened.model), "encode"):
        raise ConfigError(
            f"family={opened.cfg.family!r}: has vectors of words, not of sentences; see the command"
            " similar."
        )
    if layers.kind == "sparse":
        return _sparse(opened, texts, layers)
    if layers.kind == "multi_vector":
        return _multi_vector(opened, texts, layers, task)
    pooling = layers.pooling
    if not pooling:
        pooling = "last" if opened.cfg.skeleton == "decoder" else "mean"
    skip = 0
    if prefix and not layers.include_prompt:
        skip = prompt_length(opened, prefix)
    limit = limit_of(layers, opened)
    rows = token_rows(opened, texts, limit)
    filled = sum(len(row) <= skip for row in rows)
    if skip and filled:
        LOG.warning(
            "%d of %d texts have no token within %s but those of the prompt, which do not count:"
            " their vectors are zeros; shorten the prompt.",
            filled,
            len(rows),
            limit,
        )
    width = opened.cfg.d_model * (1 + pooling.count("+"))
    vectors = np.zeros((len(texts), width), np.float32)
    for chosen, ids_BT, mask_BT in batches(opened, rows):
        pooled = _pooled(opened.model, pooling, skip, opened.params, ids_BT, mask_BT)
        vectors[chosen] = np.asarray(pooled)[: len(chosen)]
    return layers.finish(vectors)


def _sparse(opened: TextModel, texts: Sequence[str], layers: SentenceLayers) -> "csr_array":
    """Computes the weights of all tokens of the vocabulary for each text."""
    from scipy import sparse

    if opened.cfg.head != "masked_lm":
        raise ConfigError(
            f"head={opened.cfg.head!r}: sparse vectors need a masked_lm head, which this model's"
            " files lack."
        )
    rows = token_rows(opened, texts, limit_of(layers, opened))
    if not rows:
        return sparse.csr_array((0, opened.cfg.vocab_size), dtype=np.float32)
    parts = []
    order: list[int] = []
    for chosen, ids_BT, mask_BT in batches(opened, rows):
        way = layers.pooling, layers.activation
        weights_BV = _splade(opened.model, *way, opened.params, ids_BT, mask_BT)
        parts.append(sparse.csr_array(np.asarray(weights_BV)[: len(chosen)]))
        order += chosen
    return sparse.csr_array(sparse.vstack(parts))[np.argsort(order)]


def _multi_vector(
    opened: TextModel, texts: Sequence[str], layers: SentenceLayers, task: str
) -> list[np.ndarray]:
    """Computes the vectors of the tokens of each text that count."""
    late = layers.late
    _check_markers(opened.tokenizer, late)
    limits = layers
    limit = {"query": late.query_limit, "document": late.document_limit}.get(task)
    if limit is not None:
        limits = layers._replace(limit=limit)
    expands = task == "query" and late.expansion != ""
    if expands and late.expansion == "fixed":
        limits = layers._replace(limit=late.expansion_length)
    rows = token_rows(opened, texts, limit_of(limits, opened))
    lengths = [len(row) for row in rows]
    if expands:
        filling = _expansion_id(opened, late)
        rows = [row + [filling] * (late.expansion_length - len(row)) for row in rows]
    skipped = []
    if (task or "document") in late.skipped_tasks:
        ids = [opened.tokenizer.id_of(word) for word in late.skipped]
        skipped = [index for index in ids if index is not None]
    vectors = [np.zeros((0, 0), np.float32)] * len(rows)
    for chosen, ids_BT, mask_BT in batches(opened, rows):
        if expands and not late.attends:
            for row, i in enumerate(chosen):
                # Hidden from the other tokens; the vectors of the fill count all the same.
                mask_BT[row, lengths[i] :] = 0
        hidden_BTD = np.asarray(_hidden(opened.model, opened.params, ids_BT, mask_BT))
        for row, i in enumerate(chosen):
            ids_T = np.asarray(rows[i], np.int32)
            counts_T = ~np.isin(ids_T, skipped)
            if late.kept and task != "query":
                counts_T &= np.isin(ids_T, late.kept)
            vectors[i] = layers.finish(hidden_BTD[row, : len(ids_T)][counts_T])
    return vectors


def _check_markers(tokenizer: PublishedTokenizer, late: LateInteractionSettings) -> None:
    """Checks that the tokenizer keeps PyLate's markers whole.

    Raises:
      ConfigError: one is in the vocabulary, and its spelling in a text becomes other tokens.
    """
    for marker in late.markers:
        for spelled in (marker, *marker.split()[:1]):
            index = tokenizer.id_of(spelled)
            if index is None:
                continue
            if tokenizer.encode(spelled, special_tokens=False) != [index]:
                raise ConfigError(
                    f"tokenizer.json: {spelled!r}, which marks queries or documents, is in the"
                    " vocabulary but is cut in texts; add it to added_tokens, or save the folder"
                    " again with sentence-transformers 6."
                )
            break


def _expansion_id(opened: TextModel, late: LateInteractionSettings) -> int:
    """Returns the token that fills queries."""
    if late.expansion_token:
        index = opened.tokenizer.id_of(late.expansion_token)
    else:
        special = opened.tokenizer.ids
        index = special.get("mask", special.get("eos"))
    if index is None:
        raise ConfigError(
            f"query_expansion: token={late.expansion_token!r} is not in the vocabulary; name one"
            " that is."
        )
    return index


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _splade(
    model: nn.Module,
    strategy: str,
    activation: str,
    params: Params,
    ids_BT: jax.Array,
    mask_BT: jax.Array,
) -> jax.Array:
    features: Any = model.tuned().apply(
        {"params": params}, input_ids=ids_BT, attention_mask=mask_BT, method="features"
    )
    return splade(features.projection, mask_BT, strategy=strategy, activation=activation)


def _encoded(model: nn.Module, params: Params, ids_BT: jax.Array, mask_BT: jax.Array) -> jax.Array:
    x_BTD: Any = model.tuned().apply(
        {"params": params}, ids_BT, attention_mask=mask_BT, method="encode"
    )
    return x_BTD


@functools.partial(jax.jit, static_argnums=0)
def _hidden(model: nn.Module, params: Params, ids_BT: jax.Array, mask_BT: jax.Array) -> jax.Array:
    return _encoded(model, params, ids_BT, mask_BT).astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _pooled(
    model: nn.Module,
    pooling: str,
    skip: int,
    params: Params,
    ids_BT: jax.Array,
    mask_BT: jax.Array,
) -> jax.Array:
    x_BTD = _encoded(model, params, ids_BT, mask_BT)
    return pool(pooling, x_BTD, mask_BT, skip=skip, unit=False)


def token_rows(opened: TextModel, texts: Sequence[str], limit: int | None) -> list[list[int]]:
    """Encodes texts; logs a warning if some are longer than `limit` tokens.

    Raises:
      ConfigError: a token is outside the model's vocabulary.
    """
    rows = []
    cut = 0
    for text in texts:
        ids = opened.tokenizer.encode(text, max_length=limit)
        rows.append(check_token_ids(opened.cfg, ids))
        # Encoded again only at the limit, where a text may just fit.
        if len(ids) == limit and len(opened.tokenizer.encode(text)) > limit:
            cut += 1
    if cut:
        LOG.warning(
            "%d of %d texts are longer than %s tokens, and cut there.", cut, len(texts), limit
        )
    return rows


def batches(
    opened: TextModel, rows: Sequence[Sequence[int]]
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Yields the numbers of texts of similar length, with their ids and attention mask [B, T]."""
    # from the longest on, so that a last batch of few texts is one of short ones
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    most = CPU_BATCH if jax.default_backend() == "cpu" else TEXT_BATCH
    starts = range(0, len(order), most)
    widths = plan_widths([max(1, len(rows[order[start]])) for start in starts], most)
    for start, width in zip(starts, widths, strict=True):
        chosen = order[start : start + most]
        if opened.cfg.has_position_table:
            width = min(width, opened.cfg.max_length)
        # The last batch has as many rows as the others, or it would compile anew.
        ids_BT = np.full((min(most, len(order)), width), opened.tokenizer.pad_id, np.int32)
        mask_BT = np.zeros_like(ids_BT)
        for row, i in enumerate(chosen):
            ids_BT[row, : len(rows[i])] = rows[i]
            mask_BT[row, : len(rows[i])] = 1
        yield chosen, ids_BT, mask_BT


def plan_widths(lengths: Sequence[int], rows: int) -> list[int]:
    """Rounds the lengths of batches of `rows` texts up, to MOST_WIDTHS different ones at most.

    A program is compiled for each. Of two neighbours the one whose batches grow least is given up,
    also of fewer widths if that takes less time than a program.
    """
    is_kept = jax.config.values["jax_compilation_cache_dir"] is not None
    worth = KEPT_TOKENS if is_kept else COMPILING_TOKENS
    widths = [_rounded(length) for length in lengths]
    while len(set(widths)) > 1:
        counts = collections.Counter(widths)
        pairs = itertools.pairwise(sorted(counts))
        growth = {(wide - narrow) * counts[narrow]: (narrow, wide) for narrow, wide in pairs}
        least = min(growth)
        if len(counts) <= MOST_WIDTHS and least * rows >= worth:
            break
        narrow, wide = growth[least]
        widths = [wide if width == narrow else width for width in widths]
    return widths


def _rounded(length: int) -> int:
    """Rounds a length up to eighths between powers of two: at most an eighth more."""
    power = 1 << max(0, length - 1).bit_length()
    step = max(MIN_WIDTH, power // 16)
    return math.ceil(length / step) * step


def similarity(layers: SentenceLayers) -> Similarity:
    """Returns the function (vectors a, vectors b) -> similarities [a, b] of a model's vectors.

    Raises:
      ConfigError: the model compares its vectors in a way that is not supported.
    """
    ways: dict[str, dict[str, Similarity]] = {
        "dense": {"cosine": _cosines, "dot": _dots},
        "sparse": {"dot": _sparse_dots, "cosine": _sparse_cosines},
        "multi_vector": {"maxsim": _maxsim, "meanmaxsim": _mean_maxsim},
    }
    known = ways[layers.kind]
    if layers.similarity not in known:
        raise ConfigError(
            f"config_sentence_transformers.json: similarity_fn_name={layers.similarity!r}: not"
            f" supported; must be {' or '.join(known)}."
        )
    return known[layers.similarity]


def _sparse_dots(a_AV: "csr_array", b_BV: "csr_array") -> np.ndarray:
    return (a_AV @ b_BV.T).toarray()


def _sparse_cosines(a_AV: "csr_array", b_BV: "csr_array") -> np.ndarray:
    lengths = []
    for vectors in (a_AV, b_BV):
        squares = vectors.multiply(vectors).sum(axis=1)
        # A vector of zeros stays one.
        lengths.append(np.maximum(np.sqrt(squares), np.finfo(np.float32).tiny))
    return _sparse_dots(a_AV, b_BV) / lengths[0][:, None] / lengths[1][None]


def _maxsim(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray]) -> np.ndarray:
    """Computes MaxSim of all pairs, of documents of similar length at a time."""
    scores_QM = np.zeros((len(queries), len(documents)), np.float32)
    query_QTD, counts_QT = _padded(queries, len(queries))
    order = sorted(range(len(documents)), key=lambda i: len(documents[i]))
    for start in range(0, len(order), TEXT_BATCH):
        chosen = order[start : start + TEXT_BATCH]
        document_MSD, counts_MS = _padded([documents[i] for i in chosen], TEXT_BATCH)
        scores = _compiled_maxsim(query_QTD, counts_QT, document_MSD, counts_MS)
        scores_QM[:, chosen] = np.asarray(scores)[:, : len(chosen)]
    return scores_QM


def _mean_maxsim(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray]) -> np.ndarray:
    counts_Q = np.asarray([max(1, len(query)) for query in queries], np.float32)
    return _maxsim(queries, documents) / counts_Q[:, None]


_compiled_maxsim = jax.jit(maxsim)


def _padded(texts: Sequence[np.ndarray], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Pads the vectors of texts to [rows, tokens, D], with a mask of those that are there."""
    longest = max(1, *(len(vectors) for vectors in texts))
    length = _rounded(longest)
    padded = np.zeros((rows, length, texts[0].shape[1]), np.float32)
    there = np.zeros((rows, length), np.int32)
    for row, vectors in enumerate(texts):
        padded[row, : len(vectors)] = vectors
        there[row, : len(vectors)] = 1
    return padded, there


@jax.jit
def _cosines(a_AD: jax.Array, b_BD: jax.Array) -> jax.Array:
    return _dots(to_unit_length(a_AD), to_unit_length(b_BD))


@jax.jit
def _dots(a_AD: jax.Array, b_BD: jax.Array) -> jax.Array:
    # Or a TPU would multiply float32 in bfloat16, and near documents would change places.
    return jnp.matmul(a_AD, b_BD.T, precision=jax.lax.Precision.HIGHEST)


def prompt_length(opened: TextModel, prompt: str) -> int:
    """Returns how many tokens of a text its prompt takes, without a special token at its end."""
    ids = opened.tokenizer.encode(prompt)
    return len(ids) - int(bool(ids) and ids[-1] in opened.tokenizer.ids.values())


def limit_of(layers: SentenceLayers, opened: TextModel) -> int | None:
    """Returns the most tokens of a text, by sentence-transformers, the tokenizer and the model."""
    limits = [layers.limit, opened.tokenizer.max_length]
    if opened.cfg.has_position_table:
        limits.append(opened.cfg.max_length)
    return min(filter(None, limits), default=None)
