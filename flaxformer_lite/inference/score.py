"""Log-likelihoods of given continuations, for multiple choice and evaluation harnesses."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.engine import is_encoder_decoder
from flaxformer_lite.inference.own_model import OwnModel, wrap_module
from flaxformer_lite.inference.prompts import (
    check_length,
    max_tokens,
    pad_source,
    padded_length,
    read_ids,
    refuse_traced,
    round_to_bucket,
)
from flaxformer_lite.inference.task import check_writes, decoder_start
from flaxformer_lite.nn.functions.losses import gather_positions
from flaxformer_lite.types import Params

AT_ONCE = 256  # number of tokens with logits in memory at a time


@flax.struct.dataclass
class Scores:
    """The result of `score`, one row per pair.

    Attributes:
      log_likelihood: float32 [B], nats: log p(continuation | prompt).
      logprobs: float32 [B, U], log-probability of each token of the continuation; 0 after its end.
      greedy: bool [B], whether greedy search would write exactly this continuation.
    """

    log_likelihood: np.ndarray
    logprobs: np.ndarray
    greedy: np.ndarray


def score(
    model: nn.Module,
    params: Params,
    prompts: list[list[int]],
    continuations: list[list[int]],
    *,
    decoder_start_token_id: int | None = None,
) -> Scores:
    """Computes the log-likelihood of each continuation in one forward pass.

    That is `sum_t log p(c_t | prompt, c_<t)`.

        >>> # the likelier answer
        >>> score(model, params, [[5, 7], [5, 7]], [[9, 1], [4]]).log_likelihood.argmax()

    Lengths are rounded up to the buckets of `generate`, so that only a few programs are compiled
    for each batch size.

    Args:
      model: a decoder or an encoder-decoder with its language-model head, or your own causal linen
        module, as for `generate`.
      params: its weights.
      prompts: ids of each prompt (an encoder-decoder's input); at least one id each.
      continuations: ids of each continuation; at least one id each.
      decoder_start_token_id: first token of an encoder-decoder's decoder; None is the model's, or
        0, as in T5.

    Raises:
      ValueError: ids are missing or outside the vocabulary, the lists differ in length, a pair is
        longer than the model's position table, or the model has no language-model head.
    """
    refuse_traced((prompts, continuations))
    model = wrap_module(model, params)
    cfg = model.cfg
    check_writes(cfg)
    prompts = _rows("prompts", prompts)
    continuations = _rows("continuations", continuations)
    if len(prompts) != len(continuations):
        raise ConfigError(
            f"{len(prompts)} prompts and {len(continuations)} continuations: must be equal in"
            " number."
        )
    if not all(prompts) or not all(continuations):
        raise ConfigError(
            "an empty prompt or continuation: each needs at least one token; start texts with bos."
        )
    limit = max_tokens(cfg)
    sources = None
    if is_encoder_decoder(cfg):
        check_length(limit, "a prompt", max(map(len, prompts)))
        ids_BS, mask_BS = read_ids(cfg.vocab_size, prompts, None, 0, "prompts", left=False)
        sources = pad_source(ids_BS, mask_BS, 0, padded_length(cfg, ids_BS.shape[1], limit))
        start = decoder_start(model, decoder_start_token_id, 0)
        prompts = [[start]] * len(prompts)
    rows = []
    for prompt, continuation in zip(prompts, continuations, strict=True):
        rows.append([*prompt, *continuation])
    width = max(map(len, rows)) - 1  # the last token of a row is scored, but is no input
    check_length(limit, "a prompt and its continuation", width)
    ids, _ = read_ids(
        cfg.of_decoder.vocab_size, rows, None, 0, "prompts and continuations", left=False
    )
    lengths = [len(continuation) for continuation in continuations]
    columns_BU, targets_BU = np.zeros((2, len(rows), round_to_bucket(max(lengths))), np.int32)
    for i, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        columns_BU[i, : lengths[i]] = len(prompt) - 1 + np.arange(lengths[i])
        targets_BU[i, : lengths[i]] = continuation
    columns = padded_length(cfg, width, limit)
    tokens_BT = pad_source(ids[:, :width], ids[:, :width] == 0, 0, columns).tokens_BS
    scored = _score(model, params, sources, tokens_BT, columns_BU, targets_BU)
    logprobs_BU, is_best_BU = map(np.asarray, scored)
    kept_BU = np.arange(columns_BU.shape[1])[None] < np.asarray(lengths)[:, None]
    logprobs_BU = np.where(kept_BU, logprobs_BU, np.float32(0))[:, : max(lengths)]
    greedy_B = np.asarray(np.all(is_best_BU | ~kept_BU, axis=1))
    return Scores(logprobs_BU.sum(axis=1), logprobs_BU, greedy_B)


def _rows(name: str, ids: Iterable[ArrayLike | Sequence[int]] | None) -> list[list[int]]:
    """Converts lists or an array of ids to lists."""
    rows = []
    if ids is not None:
        rows = [np.asarray(row).tolist() for row in ids]
    if not rows or not all(isinstance(row, list) for row in rows):
        raise ConfigError(
            f"{name}: must be lists of token ids, one list for each pair and at least one, such as"
            " [[5, 7]]."
        )
    return rows


@functools.partial(jax.jit, static_argnames=("model",))
def _score(
    model: nn.Module,
    params: Params,
    source: Any,
    tokens_BT: jax.Array,
    columns_BU: jax.Array,
    targets_BU: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Computes the log-probability of each target, [B, U], and whether it is the best token."""
    variables = {"params": params}
    if isinstance(model, OwnModel):
        logits_BTV = model.logits(params, tokens_BT)
        logits_BUV = jnp.take_along_axis(logits_BTV, columns_BU[:, :, None], axis=1)
        logprobs_BUV = jax.nn.log_softmax(logits_BUV)
        logprobs_BU1 = jnp.take_along_axis(logprobs_BUV, targets_BU[:, :, None], axis=2)
        return logprobs_BU1[..., 0], jnp.argmax(logits_BUV, axis=-1) == targets_BU
    if source is None:
        x_BTD, _ = model.apply(variables, tokens_BT, method="decode")
    else:
        encoded_BSD = model.apply(
            variables, source.tokens_BS, attention_mask=source.mask_BS, method="encode"
        )
        x_BTD, _ = model.apply(
            variables, tokens_BT, encoded_BSD, attention_mask=source.mask_BS, method="decode"
        )
    x_BUD = gather_positions(x_BTD, columns_BU)

    def score_token(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_D, target = pair
        projection: Any = model.apply(variables, x_D[None, None], method="project")
        logits_V = projection.logits()[0, 0]
        return logits_V[target] - jax.nn.logsumexp(logits_V), jnp.argmax(logits_V) == target

    flat = x_BUD.reshape(-1, x_BUD.shape[-1]), targets_BU.reshape(-1)
    logprobs, best = jax.lax.map(score_token, flat, batch_size=min(AT_ONCE, targets_BU.size))
    return logprobs.reshape(targets_BU.shape), best.reshape(targets_BU.shape)
