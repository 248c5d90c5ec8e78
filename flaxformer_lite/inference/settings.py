"""The settings of generation: one frozen record, checked on construction."""

import dataclasses
import difflib
import math
import operator
from dataclasses import dataclass
from typing import Any, SupportsIndex

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import quote_value

# numbers that float32 scores can be divided by, and multiplied with
MIN_DIVISOR = 1e-30
MAX_FACTOR = 1e30
MAX_INT32 = 2**31 - 1  # of a whole number, int32 in the compiled loop
MOST_ROWS = 1 << 16  # beams or samples per prompt
MOST_GUESSED = 256  # tokens of a guess


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The keyword arguments of `generate`, named as in transformers.

    Passing None means the default.

    Length
      max_new_tokens: the most tokens to write; or
      max_length: the most tokens in prompt (with its padding) and continuation; the smaller limit
        applies.
      min_new_tokens: no stop token is written before this many new tokens; or
      min_length: the same for prompt and continuation together, if min_new_tokens is not given.
    Choice of the next token (the likeliest, unless there is a temperature)
      temperature: above zero samples tokens; 1 is the model's own distribution.
      top_k, top_p, min_p: sample only from the likeliest; off at 0, 1 and 0
        (nn/functions/sampling.py).
      repetition_penalty: above 1 makes tokens of the prompt and the continuation less likely.
      no_repeat_ngram_size: no n-gram appears twice; 0 is off. Prompt tokens count, padding does
        not.
      suppress_tokens: ids that are never written.
      forced_bos_token_id: the token after a start of one token (mBART's target language); longer
        prompts include their own.
      forced_eos_token_id: the last token, if max_new_tokens is reached.
      seed: seed of the samples; the same seed gives the same text.
      num_return_sequences: samples, or beams, per prompt.

    Beam search
      num_beams: above one, searches for the highest sum of log-probabilities / length **
        length_penalty.
      length_penalty: above 0 favors long continuations, below 0 short ones.
      early_stopping: True stops at num_beams finished candidates; False when no better one is
        likely; "never" when none is possible.

    Speculative decoding (inference/speculative.py)
      prompt_lookup_num_tokens: the most tokens to copy at once from where the last tokens stood
        before; 0 is off.
      num_assistant_tokens: tokens that a draft model writes at once; needs `generate(draft=)`.

    Stopping
      eos_token_id: one stop token, or several.
      stop_strings: text that ends a row once it appears in the decoded continuation.
      pad_token_id: fills finished rows.

    Encoder-decoders
      decoder_start_token_id: first token of the decoder; None is the model's, or pad_token_id, as
        in T5.

    Raises:
      ConfigError: a value is out of range, or two exclude each other.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_length: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    seed: int = 0
    num_return_sequences: int = 1
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    prompt_lookup_num_tokens: int = 0
    num_assistant_tokens: int = 0
    eos_token_id: int | tuple[int, ...] | None = None
    stop_strings: tuple[str, ...] = ()
    pad_token_id: int = 0
    decoder_start_token_id: int | None = None

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            read = f.default
            if value is not None:
                read = _read(f.name, value, f.type)
            object.__setattr__(self, f.name, read)
        if self.max_new_tokens is None and self.max_length is None:
            raise ConfigError("max_new_tokens is missing: set the most tokens to write.")
        self._check_ranges()
        self._check_sampling()
        self._check_search()

    def _check_ranges(self) -> None:
        self._check(1, MAX_INT32, "max_new_tokens", "max_length")
        self._check(1, MOST_ROWS, "num_return_sequences", "num_beams")
        self._check(0, MAX_INT32, "min_new_tokens", "min_length", "top_k", "no_repeat_ngram_size")
        self._check(0, MOST_GUESSED, "prompt_lookup_num_tokens", "num_assistant_tokens")
        self._check(0, MAX_FACTOR, "temperature", "min_p")
        if 0 < self.temperature < MIN_DIVISOR:
            raise ConfigError(
                f"temperature={self.temperature}: must be at least {MIN_DIVISOR}, or 0 for the"
                " likeliest."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(
                f"top_p={self.top_p}: must be a probability in (0, 1]; 1 keeps every token."
            )
        if self.min_p > 1:
            raise ConfigError(
                f"min_p={self.min_p}: a fraction of the highest probability, must be in [0, 1]."
            )
        if self.repetition_penalty <= 0:
            raise ConfigError(
                f"repetition_penalty={self.repetition_penalty}: must be positive; 1 is off."
            )
        self._check(MIN_DIVISOR, MAX_FACTOR, "repetition_penalty")
        self._check(-MAX_FACTOR, MAX_FACTOR, "length_penalty")
        if self.early_stopping not in (True, False, "never"):
            raise ConfigError(
                f"early_stopping={self.early_stopping!r}: must be True, False or 'never'."
            )

    def _check_sampling(self) -> None:
        for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
            if getattr(self, name) != off and not self.temperature:
                raise ConfigError(
                    f"{name}={getattr(self, name)} restricts sampling, but temperature=0 does not"
                    f" sample; set temperature=1.0 or leave {name} out."
                )

    def _check_search(self) -> None:
        several = f"num_return_sequences={self.num_return_sequences}"
        beams = f"num_beams={self.num_beams}"
        if self.num_beams == 1 < self.num_return_sequences and not self.temperature:
            way = "set temperature=1.0 to sample several, or num_beams"
            raise ConfigError(f"{several}: greedy search has only one result; {way}.")
        if self.num_beams > 1 and self.temperature:
            both = f"{beams}, temperature={self.temperature}"
            raise ConfigError(f"{both}: beam search does not sample; set one of the two.")
        if 1 < self.num_beams < self.num_return_sequences:
            raise ConfigError(
                f"{several}, {beams}: a search returns at most its beams; raise num_beams."
            )
        if self.guessed and self.num_beams > 1:
            raise ConfigError(
                f"{beams}: beam search writes several texts at once, for which nothing is guessed;"
                " leave out draft and prompt_lookup_num_tokens, or num_beams."
            )
        if self.prompt_lookup_num_tokens and self.num_assistant_tokens:
            raise ConfigError(
                f"prompt_lookup_num_tokens={self.prompt_lookup_num_tokens}: guesses are looked up,"
                " or a draft's; leave out one of the two."
            )
        if self.num_beams > 1 and self.stop_strings:
            raise ConfigError(
                "stop_strings: do not work with num_beams, which stops on tokens only; use"
                " eos_token_id."
            )

    def _check(self, least: float, most: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                bound = f"at most {most}"
                if value < least:
                    bound = f"at least {least}"
                raise ConfigError(f"{name}={value}: must be {bound}.")

    @property
    def guessed(self) -> int:
        """The most tokens that are guessed at once; 0 without speculative decoding."""
        return self.prompt_lookup_num_tokens or self.num_assistant_tokens

    @property
    def eos(self) -> tuple[int, ...]:
        """The stop tokens, possibly none."""
        if self.eos_token_id is None:
            return ()
        if isinstance(self.eos_token_id, int):
            return (self.eos_token_id,)
        return self.eos_token_id


def make_settings(**values: Any) -> Settings:
    """Builds Settings from keyword arguments.

    Raises:
      ConfigError: a name is unknown (with the nearest known one), or a rule of `Settings` is
        broken.
    """
    known = [f.name for f in dataclasses.fields(Settings)]
    if values.pop("do_sample", False) and not values.get("temperature"):
        raise ConfigError(
            "do_sample=True: set a temperature instead; temperature=1.0 is the model's own"
            " distribution."
        )
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"choose from {', '.join(known)}."
            if near:
                hint = f"did you mean {near[0]}?"
            raise ConfigError(f"generate has no setting {name!r}; {hint}")
    return Settings(**values)


def _read(name: str, value: Any, kind: Any) -> Any:
    """Converts a number of Python or numpy to the type of its field."""
    try:
        if kind == tuple[str, ...]:
            texts = (value,) if isinstance(value, str) else tuple(value)
            if not all(isinstance(text, str) and text for text in texts):
                raise TypeError
            return texts
        if kind == bool | str:
            return value if isinstance(value, str) else bool(value)
        if kind is float:
            if isinstance(value, (bool, str)) or not math.isfinite(value):
                raise TypeError
            return float(value)
        if isinstance(value, (list, tuple)) and kind in (
            tuple[int, ...],
            int | tuple[int, ...] | None,
        ):
            return tuple(map(_integer, value))
        number = _integer(value)
        return (number,) if kind == tuple[int, ...] else number
    except (TypeError, ValueError):
        words = {float: "a number", tuple[str, ...]: "texts", tuple[int, ...]: "token ids"}
        raise ConfigError(
            f"{name}={quote_value(value)}: must be {words.get(kind, 'a whole number')}."
        ) from None


def _integer(value: SupportsIndex) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)
