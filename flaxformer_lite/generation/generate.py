"""Text from a trained model: greedy, sampled or searched, whole or as it is written."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import flax
import flax.linen as nn
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.generation import _sample
from flaxformer_lite.generation._engine import Rows, two_sided
from flaxformer_lite.generation._prompts import (
    Prompt,
    Source,
    align,
    bucket,
    check_length,
    pad_source,
    read_ids,
    table_length,
)
from flaxformer_lite.generation._rules import Rules, rules_of
from flaxformer_lite.generation.settings import Settings, settings


@flax.struct.dataclass
class Generation:
    """What `generate(..., return_scores=True)` returns; R rows are num_return_sequences for each prompt in turn.

    Attributes:
      sequences: int32 [R, T], prompt and continuation.
      logprobs: float32 [R, new], log-probability of each new token under the model itself, before any setting changed
        it; 0 after a row's end. None for beams.
      lengths: int32 [R], new tokens of each row up to its stop token and with it.
      sequences_scores: float32 [R], of beam search: sum of log-probabilities / length ** length_penalty; else None.
    """

    sequences: np.ndarray
    logprobs: np.ndarray | None
    lengths: np.ndarray
    sequences_scores: np.ndarray | None = None


def generate(
    model: nn.Module,
    params: Any,
    input_ids: Any,
    attention_mask: Any = None,
    *,
    decoder_input_ids: Any = None,
    tokenizer: Any = None,
    return_scores: bool = False,
    **options: Any,
) -> np.ndarray | Generation:
    """Continues prompts with the tokens a model finds likely, as transformers' `generate` does.

        >>> generate(model, params, [[5, 7, 9], [4]], max_new_tokens=20, temperature=0.8, top_p=0.95, eos_token_id=1)

    The first call of a model and a kind of settings compiles a prefill and a loop; later calls compile nothing while
    prompts, new tokens and sources stay within the same buckets (powers of two up to 256, then multiples of 256).

    Args:
      model: a decoder or an encoder-decoder with its language-model head.
      params: its weights, the `params` of `model.apply`.
      input_ids: prompts (an encoder-decoder's source), integers [B, T]; or a list of lists of unequal lengths.
      attention_mask: [B, T], zero where a prompt is padded, left or right.
      decoder_input_ids: of an encoder-decoder, what the continuation starts with; None is decoder_start_token_id.
      tokenizer: with stop_strings, anything whose `decode(list of ids)` gives text.
      return_scores: whether to return a `Generation` rather than its sequences alone.
      **options: the fields of `Settings`, foremost max_new_tokens.

    Returns:
      int32 [B * num_return_sequences, T + new]: each row its prompt, padding moved to the left, and its continuation,
      filled with pad_token_id after a stop token. Of an encoder-decoder, decoder_input_ids and continuation.

    Raises:
      ValueError: an unknown setting or one out of range, ids outside the vocabulary, a prompt and continuation longer
        than the model's table of positions, a model that cannot write.
    """
    task = _prepare(model, input_ids, attention_mask, decoder_input_ids, settings(**options))
    *_, state = _states(model, params, task, return_scores, every=task.max_new)
    return _result(task, state, return_scores)


class Task(NamedTuple):
    """A call of `generate`, checked and ready for the device."""

    settings: Settings
    prompt: Prompt
    source: Source | None
    max_new: int
    rules: Rules
    slots: int


def _prepare(model, input_ids, attention_mask, decoder_input_ids, s: Settings) -> Task:
    cfg = model.cfg
    _check_model(cfg)
    ids_BT, mask_BT = read_ids(cfg, input_ids, attention_mask, s.pad_token_id)
    source = None
    if two_sided(cfg):
        check_length(cfg, "input_ids", ids_BT.shape[1])
        source = pad_source(ids_BT, mask_BT, s.pad_token_id, table_length(cfg))
        if decoder_input_ids is None:
            start = s.pad_token_id if s.decoder_start_token_id is None else s.decoder_start_token_id
            decoder_input_ids = np.full((len(ids_BT), 1), start, np.int32)
        ids_BT, mask_BT = read_ids(cfg, decoder_input_ids, None, s.pad_token_id, "decoder_input_ids")
    elif decoder_input_ids is not None:
        raise ConfigError(f"decoder_input_ids: {cfg.family} has no encoder; pass the prompt as input_ids.")
    width = ids_BT.shape[1]
    limits = [s.max_new_tokens, None if s.max_length is None else s.max_length - width]
    max_new = min(limit for limit in limits if limit is not None)
    if max_new < 1:
        raise ConfigError(f"max_length={s.max_length}: the prompt alone has {width} tokens; raise it.")
    check_length(cfg, "a prompt", int(mask_BT.sum(axis=1).max()), max_new)
    prompt = align(ids_BT, mask_BT, s.pad_token_id, table_length(cfg))
    rules = rules_of(s, max_new, max(s.min_new_tokens, s.min_length - width))
    return Task(s, prompt, source, max_new, rules, prompt.tokens_BT.shape[1] + bucket(max_new))


def _check_model(cfg: ModelConfig) -> None:
    if not cfg.decoder_layers or cfg.head != "lm":
        raise ConfigError(f"family={cfg.family!r}, head={cfg.head!r}: only a decoder with head='lm' writes text.")


def _states(model, params, task: Task, scores: bool, every: int) -> Iterator[_sample.State]:
    """The rows after each `every` new tokens."""
    samples, seed = task.settings.num_return_sequences, np.uint32(task.settings.seed % 2**32)
    rows = Rows(task.prompt.start_B, task.source and task.source.mask_BS)
    state = _sample.start(
        model, params, task.prompt.tokens_BT, rows, task.source and task.source.tokens_BS, task.rules, seed,
        slots=task.slots, samples=samples, scores=scores,
    )  # fmt: skip
    if samples > 1:
        rows = Rows(*(x if x is None else np.repeat(x, samples, axis=0) for x in (rows.start_B, rows.source_mask_BS)))
    prompt, new = task.prompt.tokens_BT.shape[1], 0
    while new < task.max_new:
        until = min(new + every, task.max_new)
        state = _sample.proceed(model, params, state, rows, task.rules, seed, np.int32(until), prompt=prompt)
        new = int(state.new)
        yield state
        if new < until or np.all(state.done_B):
            return


def _result(task: Task, state: _sample.State, scores: bool) -> np.ndarray | Generation:
    prompt, new = task.prompt.tokens_BT.shape[1], int(state.new)
    sequences = np.asarray(state.tokens_BS)[:, prompt - min(task.prompt.width, prompt) : prompt + new]
    if not scores:
        return sequences
    written = sequences[:, -new:]
    stops = np.isin(written, task.settings.eos)
    lengths = np.where(stops.any(axis=1), stops.argmax(axis=1) + 1, new).astype(np.int32)
    return Generation(sequences, np.asarray(state.logprobs_BS)[:, prompt : prompt + new], lengths)
