"""A call of `generate`, checked and converted for the compiled functions."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.generation.engine import Rows, is_encoder_decoder
from flaxformer_lite.generation.prompts import (
    NO_BOUND,
    Prompt,
    Source,
    align,
    bucket,
    check_length,
    pad_source,
    read_ids,
)
from flaxformer_lite.generation.rules import Rules, rules_of
from flaxformer_lite.generation.settings import Settings


class Task(NamedTuple):
    """One call of `generate`.

    Attributes:
      settings: the caller's settings.
      prompt: the prompt of a decoder, or the start of an encoder-decoder's decoder.
      source: the input of an encoder, or None.
      rules: the settings as arrays.
      max_new: the most tokens to write.
      slots: columns of prompt and continuation, each rounded up to a bucket.
      tokenizer: for stop strings.
    """

    settings: Settings
    prompt: Prompt
    source: Source | None
    rules: Rules
    max_new: int
    slots: int
    tokenizer: Any

    @property
    def columns(self) -> int:
        """The number of columns before the first new token."""
        return self.prompt.tokens_BT.shape[1]

    @property
    def source_BS(self) -> np.ndarray | None:
        return self.source and self.source.tokens_BS

    def rows(self, copies: int = 1) -> Rows:
        """Returns the rows for the compiled functions, with `copies` of each prompt in a row."""
        mask_BS = self.source and np.repeat(self.source.mask_BS, copies, axis=0)
        return Rows(np.repeat(self.prompt.start_B, copies), mask_BS)


def check_writes(cfg: ModelConfig) -> None:
    """Refuses a model without a language-model head."""
    if not cfg.decoder_layers or cfg.head != "lm":
        raise ConfigError(f"family={cfg.family!r}, head={cfg.head!r}: only a decoder with head='lm' can generate.")


def longest(cfg: ModelConfig) -> int:
    """Returns the number of positions: max_length if the model has a position table, else NO_BOUND."""
    return cfg.max_length if cfg.has_position_table else NO_BOUND


def prepare(cfg: ModelConfig, input_ids, attention_mask, decoder_input_ids, tokenizer, s: Settings) -> Task:
    """Checks and converts the arguments of `generate`, without using a device.

    Raises:
      ValueError: see `generate`.
    """
    check_writes(cfg)
    if s.stop_strings and not hasattr(tokenizer, "decode"):
        raise ConfigError("stop_strings needs tokenizer=, an object with decode(ids) -> text.")
    vocab = cfg.of_decoder.vocab_size
    for name in ("eos_token_id", "pad_token_id", "suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"):
        tokens = getattr(s, name)
        if not all(0 <= token < vocab for token in (tokens if isinstance(tokens, tuple) else (tokens or 0,))):
            raise ConfigError(f"{name}={getattr(s, name)}: must be in 0..{vocab - 1}, the model's vocabulary.")
    limit = longest(cfg)
    ids_BT, mask_BT = read_ids(
        cfg.vocab_size, input_ids, attention_mask, s.pad_token_id, left=not is_encoder_decoder(cfg)
    )
    source, bare = None, ids_BT.shape[1] == 1
    if is_encoder_decoder(cfg):
        check_length(limit, "input_ids", ids_BT.shape[1])
        source = pad_source(ids_BT, mask_BT, s.pad_token_id, limit)
        starts = (s.decoder_start_token_id, cfg.decoder_start_token_id, s.pad_token_id)
        start = next(token for token in starts if token is not None)
        if decoder_input_ids is None:
            decoder_input_ids = np.full((len(ids_BT), 1), start, np.int32)
        ids_BT, mask_BT = read_ids(vocab, decoder_input_ids, None, s.pad_token_id, "decoder_input_ids")
        bare = ids_BT.shape[1] == 1 and bool(np.any(ids_BT == start))
        if len(ids_BT) != len(source.mask_BS):
            raise ConfigError(
                f"decoder_input_ids has {len(ids_BT)} rows, input_ids {len(source.mask_BS)}: must be equal."
            )
    elif decoder_input_ids is not None:
        raise ConfigError(f"decoder_input_ids: {cfg.family} has no encoder; pass the prompt as input_ids.")
    width = ids_BT.shape[1]
    max_new = _new_tokens(s, width)
    check_length(limit, "a prompt", int(mask_BT.sum(axis=1).max()), max_new)
    prompt = align(ids_BT, mask_BT, s.pad_token_id, limit)
    min_new = s.min_length - width if s.min_new_tokens is None else s.min_new_tokens
    rules = rules_of(s if bare else dataclasses.replace(s, forced_bos_token_id=None), max_new, max(min_new, 0))
    return Task(s, prompt, source, rules, max_new, prompt.tokens_BT.shape[1] + bucket(max_new), tokenizer)


def _new_tokens(s: Settings, width: int) -> int:
    limits = [s.max_new_tokens, None if s.max_length is None else s.max_length - width]
    max_new = min(limit for limit in limits if limit is not None)
    if max_new < 1:
        raise ConfigError(f"max_length={s.max_length}: the prompt alone has {width} tokens; raise it.")
    return max_new
