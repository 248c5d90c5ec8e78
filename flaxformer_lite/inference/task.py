"""A call of `generate`, checked and converted for the compiled functions."""

import dataclasses
import functools
import logging
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import flax.linen as nn
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.inference import prompts
from flaxformer_lite.inference.engine import PromptRows, is_encoder_decoder
from flaxformer_lite.inference.rules import GenerationRules, rules_of
from flaxformer_lite.inference.settings import Settings
from flaxformer_lite.models.skeletons.family_model import FamilyModel
from flaxformer_lite.nn.positions.encoding import list_hooks

LOG = logging.getLogger("flaxformer_lite")


class Decodes(Protocol):
    """A tokenizer that turns ids into text."""

    def decode(self, ids: Iterable[int], /) -> str: ...


class GenerationTask(NamedTuple):
    """One call of `generate`."""

    settings: Settings
    prompt: prompts.Prompt  # of a decoder, or the start of an encoder-decoder's decoder
    source: prompts.EncoderInput | None  # the input of an encoder
    rules: GenerationRules  # the settings as arrays
    max_new: int  # the most tokens to write
    slots: int  # columns of prompt and continuation, each rounded up to a bucket
    tokenizer: Decodes | None  # for stop strings

    @property
    def columns(self) -> int:
        """The number of columns before the first new token."""
        return self.prompt.tokens_BT.shape[1]

    def rows(self, copies: int = 1) -> PromptRows:
        """Returns the rows for the compiled functions, with `copies` of each prompt in a row."""
        mask_BS = self.source and np.repeat(self.source.mask_BS, copies, axis=0)
        return PromptRows(np.repeat(self.prompt.start_B, copies), mask_BS)


def check_writes(cfg: ModelConfig) -> None:
    """Refuses a model without a language-model head."""
    if not cfg.decoder_layers or cfg.head != "lm":
        raise ConfigError(
            f"family={cfg.family!r}, head={cfg.head!r}: only a decoder with head='lm' can generate."
        )


def decoder_start(model: nn.Module, given: int | None, default: int) -> int:
    """Returns the first token of an encoder-decoder's decoder.

    Args:
      model: the model.
      given: the token that the caller asks for.
      default: the token of a model without decoder_start_token_id.

    Raises:
      ConfigError: the model starts with the token of a language, and none is named.
    """
    for token in (given, model.cfg.decoder_start_token_id):
        if token is not None:
            return token
    if model.starts_with_language:
        raise ConfigError(
            f"decoder_start_token_id=None: the decoder of {model.cfg.family} starts with the token"
            " of the target's language; pass decoder_start_token_id=, or set it in config.json."
        )
    return default


def prepare_task(
    model: nn.Module,
    input_ids: prompts.Ids,
    attention_mask: prompts.Ids | None,
    decoder_input_ids: prompts.Ids | None,
    tokenizer: Decodes | None,
    s: Settings,
) -> GenerationTask:
    """Checks and converts the arguments of `generate`, without using a device."""
    cfg = model.cfg
    check_writes(cfg)
    if s.stop_strings and not hasattr(tokenizer, "decode"):
        raise ConfigError("stop_strings needs tokenizer=, an object with decode(ids) -> text.")
    _check_tokens(s, cfg.of_decoder.vocab_size)
    limit = prompts.max_tokens(cfg)
    two = is_encoder_decoder(cfg)
    pad = s.pad_token_id
    ids_BT, mask_BT = prompts.read_ids(cfg.vocab_size, input_ids, attention_mask, pad, left=not two)
    source = None
    is_bare = ids_BT.shape[1] == 1
    if two:
        prompts.check_length(limit, "input_ids", ids_BT.shape[1])
        columns = prompts.padded_length(cfg, ids_BT.shape[1], limit)
        source = prompts.pad_source(ids_BT, mask_BT, pad, columns)
        ids_BT, mask_BT, is_bare = _decoder_prompt(model, decoder_input_ids, len(ids_BT), s)
    elif decoder_input_ids is not None:
        raise ConfigError(
            f"decoder_input_ids: {cfg.family} has no encoder; pass the prompt as input_ids."
        )
    width = ids_BT.shape[1]
    max_new = _most_new(s, width)
    longest = int(mask_BT.sum(axis=1).max())
    prompts.check_length(limit, "a prompt", longest, max_new)
    if limit == prompts.MAX_PROMPT_TOKENS and longest > cfg.max_length and _is_rotary(model):
        _warn_of_length(cfg.family, longest, cfg.max_length)
    prompt = prompts.align(ids_BT, mask_BT, pad, prompts.padded_length(cfg, width, limit))
    min_new = s.min_length - width if s.min_new_tokens is None else s.min_new_tokens
    forced = s if is_bare else dataclasses.replace(s, forced_bos_token_id=None)
    rules = rules_of(forced, max_new, max(min_new, 0))
    slots = prompt.tokens_BT.shape[1] + prompts.round_to_bucket(max_new)
    if s.guessed:
        slots += s.guessed + 1  # the last guess may end behind the last token
    return GenerationTask(s, prompt, source, rules, max_new, slots, tokenizer)


def _is_rotary(model: nn.Module) -> bool:
    return isinstance(model, FamilyModel) and "phase" in list_hooks(model.cfg.position)


@functools.cache
def _warn_of_length(family: str, tokens: int, window: int) -> None:
    """Says once, as transformers does, that a text is longer than any that a model has seen."""
    LOG.warning(
        "a prompt of %d tokens: this %s was made for at most %d; it may take long, and what is"
        " written may be of no use.",
        tokens,
        family,
        window,
    )


def _check_tokens(s: Settings, vocab: int) -> None:
    for name in (
        "eos_token_id",
        "pad_token_id",
        "suppress_tokens",
        "forced_bos_token_id",
        "forced_eos_token_id",
    ):
        tokens = getattr(s, name)
        several = tokens if isinstance(tokens, tuple) else (tokens or 0,)
        if not all(0 <= token < vocab for token in several):
            raise ConfigError(
                f"{name}={tokens}: must be in 0..{vocab - 1}, the model's vocabulary."
            )


def _decoder_prompt(
    model: nn.Module, given: prompts.Ids | None, rows: int, s: Settings
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Returns the decoder's prompt, its mask, and whether it is the start token alone."""
    pad = s.pad_token_id
    start = s.decoder_start_token_id
    if given is None:
        start = decoder_start(model, start, pad)
        given = [[start]] * rows
    elif start is None:
        start = model.cfg.decoder_start_token_id
    if start is None:
        start = pad
    vocab = model.cfg.of_decoder.vocab_size
    ids_BT, mask_BT = prompts.read_ids(vocab, given, None, pad, "decoder_input_ids")
    if len(ids_BT) != rows:
        raise ConfigError(
            f"decoder_input_ids has {len(ids_BT)} rows, input_ids {rows}: must be equal."
        )
    is_bare = ids_BT.shape[1] == 1 and bool(np.any(ids_BT == start))
    return ids_BT, mask_BT, is_bare


def _most_new(s: Settings, width: int) -> int:
    """Returns the most tokens to write after a prompt of `width` tokens."""
    limits = []
    if s.max_new_tokens is not None:
        limits.append(s.max_new_tokens)
    if s.max_length is not None:
        limits.append(s.max_length - width)
    most = min(limits)
    if most < 1:
        raise ConfigError(
            f"max_length={s.max_length}: the prompt alone has {width} tokens; raise it."
        )
    return most
