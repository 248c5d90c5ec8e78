"""Text generation: greedy, sampled or by beam search, returned as a whole or streamed."""

import collections
from collections.abc import Callable, Iterator
from typing import Any, Literal, overload

import flax
import flax.linen as nn
import jax
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference import beam, engine, sample, speculative, stop_strings
from flaxformer_lite.inference.engine import Caches, Generator, prefill, repeat_caches
from flaxformer_lite.inference.own_model import OwnModel, wrap_module
from flaxformer_lite.inference.prompts import Ids
from flaxformer_lite.inference.settings import Settings, make_settings
from flaxformer_lite.inference.speculative import Draft
from flaxformer_lite.inference.task import Decodes, GenerationTask, prepare_task
from flaxformer_lite.types import Params

GUESSED_TOKENS = 4  # the default number of tokens that a draft model guesses


@flax.struct.dataclass
class Generation:
    """The result of `generate(..., return_scores=True)`.

    It has R rows: num_return_sequences per prompt.

    Attributes:
      sequences: int32 [R, T], prompt and continuation.
      lengths: int32 [R], new tokens of each row up to its end, including a stop token.
      logprobs: float32 [R, new], log-probability of each new token under the model itself, before
        any setting changes it; 0 after a row's end. None in beam search.
      sequences_scores: float32 [R], sum of log-probabilities / length ** length_penalty, in beam
        search; else None.
      reads: int32 [R], how often the model read a row after its prompt, in speculative decoding;
        without, it would be lengths - 1.
    """

    sequences: np.ndarray
    lengths: np.ndarray
    logprobs: np.ndarray | None = None
    sequences_scores: np.ndarray | None = None
    reads: np.ndarray | None = None


@overload
def generate(
    model: nn.Module,
    params: Params,
    input_ids: Ids,
    attention_mask: Ids | None = None,
    *,
    return_scores: Literal[False] = False,
    **options: Any,
) -> np.ndarray: ...
@overload
def generate(
    model: nn.Module,
    params: Params,
    input_ids: Ids,
    attention_mask: Ids | None = None,
    *,
    return_scores: Literal[True],
    **options: Any,
) -> Generation: ...
def generate(
    model: nn.Module,
    params: Params,
    input_ids: Ids,
    attention_mask: Ids | None = None,
    *,
    decoder_input_ids: Ids | None = None,
    tokenizer: Decodes | None = None,
    draft: tuple[nn.Module, Params] | None = None,
    return_scores: bool = False,
    **options: Any,
) -> np.ndarray | Generation:
    """Continues prompts with tokens that the model finds likely, as transformers' `generate` does.

        >>> generate(model, params, [[5, 7, 9], [4]], max_new_tokens=20, temperature=0.8)

    The first call for a model and a kind of settings compiles a prefill and a loop. Later calls
    compile nothing as long as the number of prompts is the same, and prompts, sources and new
    tokens fall into the same buckets of length (powers of two up to 256, then multiples of 256).

    Args:
      model: a decoder or an encoder-decoder with its language-model head; or a causal linen module
        of your own that maps ids [B, T] to logits [B, T, V] (or to an output with the field
        `logits`), which reads the whole row again for each new token. If its length is
        limited, its attribute `max_length` says to how many tokens.
      params: its weights, the `params` of `model.apply`.
      input_ids: prompts (an encoder-decoder's sources), integers [B, T]; or a list of lists of
        unequal lengths.
      attention_mask: [B, T], zero for padding, left or right.
      decoder_input_ids: start of the continuation of an encoder-decoder; None is
        decoder_start_token_id.
      tokenizer: an object with `decode(list of ids) -> text`, needed for stop_strings.
      draft: a smaller decoder with the same vocabulary, and its weights. It guesses
        num_assistant_tokens (4) at a time, which the model reads at once. Greedy decoding writes
        what it writes without a draft; samples have the same distribution, but are others.
      return_scores: whether to return a `Generation` instead of its sequences only.
      **options: the fields of `Settings` (inference/settings.py), above all max_new_tokens.

    Returns:
      int32 [B * num_return_sequences, T + new]: each row is its prompt, with padding moved to the
      left, and its continuation, filled with pad_token_id after its end (beam search uses the first
      stop token if pad_token_id is 0, as transformers does). For an encoder-decoder,
      decoder_input_ids and continuation.

    Raises:
      ValueError: a setting is unknown or out of range, ids are outside the vocabulary, prompt and
        continuation are longer than the model's position table, the model has no language-model
        head, or its logits are NaN.
    """
    model, params = _prepare_model(model, params)
    s = _settings(options, draft)
    task = prepare_task(model, input_ids, attention_mask, decoder_input_ids, tokenizer, s)
    guesser = None
    if draft:
        guess_model, guess_params = _prepare_model(*draft)
        guesser = Draft(model=guess_model, params=guess_params)
    speculative.check(model, guesser, task)
    if task.settings.num_beams > 1:
        result = _search(model, params, task)
    else:
        result = run_task(model, params, task, guesser, return_scores)
    if return_scores:
        return result
    return result.sequences


def stream(
    model: nn.Module,
    params: Params,
    input_ids: Ids,
    attention_mask: Ids | None = None,
    *,
    decoder_input_ids: Ids | None = None,
    tokenizer: Decodes | None = None,
    draft: tuple[nn.Module, Params] | None = None,
    every: int = 1,
    **options: object,
) -> Iterator[np.ndarray]:
    """Yields the new tokens of `generate` as they are written, until all rows end.

    Each item is int32 [R, n], n at most `every`.

    Concatenated, they are the continuation that `generate` returns. Takes the arguments of
    `generate`.

    Raises:
      ValueError: as in `generate`; also for num_beams, as beam search may change tokens that it has
        written.
    """
    if every < 1:
        raise ConfigError(f"stream: every={every}: must be at least 1 token.")
    model, params = _prepare_model(model, params)
    s = _settings(options, draft)
    task = prepare_task(model, input_ids, attention_mask, decoder_input_ids, tokenizer, s)
    if task.settings.num_beams > 1:
        raise ConfigError(
            "stream: beam search may change tokens already written; use generate, or num_beams=1."
        )
    guesser = None
    if draft:
        guess_model, guess_params = _prepare_model(*draft)
        guesser = Draft(model=guess_model, params=guess_params)
    speculative.check(model, guesser, task)
    return _new_columns(model, params, task, guesser, every)


def _prepare_model(model: nn.Module, params: Params) -> tuple[nn.Module, Params]:
    """Returns what the compiled functions take, the parameters in the form that is fast here."""
    wrapped = wrap_module(model, params)
    return wrapped, engine.add_output_rows(wrapped, params)


def _settings(options: Any, draft: tuple[nn.Module, Params] | None) -> Settings:
    """Builds the settings; a draft guesses GUESSED_TOKENS tokens unless they say how many."""
    if draft is not None and not (isinstance(draft, (tuple, list)) and len(draft) == 2):
        raise ConfigError(
            f"draft: is a {type(draft).__name__}; pass (model, params), as load_pretrained returns."
        )
    if draft is None and options.get("num_assistant_tokens"):
        raise ConfigError(
            f"num_assistant_tokens={options['num_assistant_tokens']}: needs draft=(model, params)."
        )
    if draft is not None and not options.get("num_assistant_tokens"):
        options = options | {"num_assistant_tokens": GUESSED_TOKENS}
    return make_settings(**options)


def _new_columns(
    model: Generator, params: Params, task: GenerationTask, draft: Draft | None, every: int
) -> Iterator[np.ndarray]:
    seen = task.columns
    for state in _states(model, params, task, draft, False, every):
        stop = task.columns + int(state.new)
        yield np.asarray(state.tokens_BS)[:, seen:stop]
        seen = stop


def _read(
    model: Generator, params: Params, task: GenerationTask, copies: int
) -> tuple[jax.Array, Caches]:
    """Returns the logits after each prompt, and the caches, with `copies` rows per prompt."""
    source_BS = task.source and task.source.tokens_BS
    logits_BV, cache = prefill(
        model,
        params,
        task.prompt.tokens_BT,
        task.rows(),
        source_BS,
        slots=task.slots,
        goes_back=task.settings.guessed > 0,
    )
    if logits_BV.is_fully_addressable:  # several processes would have to meet to look at them
        _refuse_nan(np.asarray(logits_BV))
    if copies > 1:
        cache = repeat_caches(model.cfg, cache, copies)
    return logits_BV, cache


def _refuse_nan(logits_BV: np.ndarray) -> None:
    nan_B = np.isnan(logits_BV).any(axis=1)
    if nan_B.any():
        raise ConfigError(
            f"generate: the logits after prompt {int(np.argmax(nan_B))} are NaN; check that the"
            " parameters hold none (jnp.isnan), and that dtype='float32' gives numbers."
        )


def _states(
    model: Generator,
    params: Params,
    task: GenerationTask,
    draft: Draft | None,
    scores: bool,
    every: int,
) -> Iterator[sample.SampleState]:
    """Yields the state after each `every` new tokens.

    Its arrays are deleted when the next is requested.
    """
    s = task.settings
    seed = np.uint32(task.settings.seed % 2**32)
    logits_BV, cache = _read(model, params, task, s.num_return_sequences)
    state = sample.start(
        logits_BV,
        task.prompt.tokens_BT,
        task.prompt.start_B,
        task.rules,
        seed,
        slots=task.slots,
        samples=s.num_return_sequences,
        scores=scores,
    )
    state = state.replace(cache=cache)
    if s.guessed:
        state = state.replace(reads_B=np.zeros(len(state.lengths_B), np.int32))
    if draft is not None:
        _, draft_cache = _read(draft.model, draft.params, task, s.num_return_sequences)
        state = state.replace(draft_cache=draft_cache)
    new = 0
    if s.stop_strings:
        every = min(every, stop_strings.TOKENS_PER_CHECK)
    while new < task.max_new and not _is_written(state, new):
        until = np.int32(min(new + every, task.max_new))
        state = _proceed(model, params, task, draft, state, seed, until)
        if s.stop_strings:
            state = stop_strings.cut(task, state, new)
        new = int(state.new)
        yield state


def _is_written(state: sample.SampleState, new: int) -> bool:
    """Returns whether all rows have ended within the first `new` tokens."""
    return bool(new and np.asarray(state.done_B).all() and np.asarray(state.lengths_B).max() <= new)


def _proceed(
    model: Generator,
    params: Params,
    task: GenerationTask,
    draft: Draft | None,
    state: sample.SampleState,
    seed: np.uint32,
    until: np.int32,
) -> sample.SampleState:
    copies = task.settings.num_return_sequences
    rows = task.rows(copies)
    if isinstance(model, OwnModel) or not task.settings.guessed:
        return sample.proceed(
            model, params, state, rows, task.rules, seed, until, prompt=task.columns
        )
    loop = speculative.GuessLoop(
        model=model,
        params=params,
        draft=draft,
        rows=rows,
        source_BS=task.source and np.repeat(task.source.tokens_BS, copies, axis=0),
        rules=task.rules,
        seed=seed,
        prompt=task.columns,
        guessed=task.settings.guessed,
    )
    return speculative.proceed(loop, state, until)


def run_task(
    model: Generator,
    params: Params,
    task: GenerationTask,
    draft: Draft | None = None,
    scores: bool = True,
    read: Callable[[jax.Array], np.ndarray] = np.asarray,
) -> Generation:
    """Writes the continuations of a prepared call of `generate` without beams.

    Args:
      read: reads an array of the devices.
    """
    states = _states(model, params, task, draft, scores, task.max_new)
    # Only the last state may be read: each donates its arrays to the next.
    state = collections.deque(states, maxlen=1).pop()
    lengths = read(state.lengths_B)
    stop = task.columns + int(lengths.max())
    sequences = read(state.tokens_BS)[:, task.columns - task.prompt.width : stop]
    logprobs = reads = None
    if scores and state.logprobs_BS is not None:
        logprobs = read(state.logprobs_BS)[:, task.columns : stop]
    if state.reads_B is not None:
        reads = read(state.reads_B)
    return Generation(sequences, lengths, logprobs, reads=reads)


def _search(model: Generator, params: Params, task: GenerationTask) -> Generation:
    s = task.settings
    early = task.settings.early_stopping
    search = beam.Search(
        np.float32(s.length_penalty), np.bool_(early is True), np.bool_(early == "never")
    )
    logits_BV, cache = _read(model, params, task, s.num_beams)
    begun = logits_BV, task.prompt.tokens_BT, task.prompt.start_B, task.rules, search
    state = beam.start(*begun, slots=task.slots, beams=s.num_beams).replace(cache=cache)
    pool = beam.proceed(
        model, params, state, task.rows(s.num_beams), task.rules, search, prompt=task.columns
    ).pool

    def best(x: jax.Array) -> np.ndarray:
        returned = np.asarray(x)[:, : s.num_return_sequences]
        return returned.reshape(-1, *returned.shape[2:])

    sequences = best(pool.tokens_BJS)
    lengths = best(pool.lengths_BJ)
    scores = best(pool.scores_BJ)
    sequences = sequences[:, task.columns - task.prompt.width : task.columns + lengths.max()]
    after = np.arange(sequences.shape[1])[None] >= task.prompt.width + lengths[:, None]
    fill = s.pad_token_id or (s.eos[0] if s.eos else 0)
    return Generation(np.where(after, np.int32(fill), sequences), lengths, sequences_scores=scores)
