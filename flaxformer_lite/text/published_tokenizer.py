"""Tokenizers of published models.

They add special tokens, recognize them in text, and pad on the model's side.

The tokenizers of text/tokenizer.py return the ids of the bare text, for training.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tokenizers

from flaxformer_lite import hints
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.text import tokenizer as plain
from flaxformer_lite.text.added_tokens import content_of
from flaxformer_lite.text.escape_specials import (
    any_of,
    encoding_errors,
    split_at,
    without_panics,
)
from flaxformer_lite.text.special_tokens import Frame, longest_first

LOG = logging.getLogger("flaxformer_lite")

JSON = "tokenizer.json"
ROLES = ("pad", "bos", "eos", "cls", "sep", "mask", "unk")
MIN_ENDLESS_LENGTH = (
    1_000_000  # larger values in tokenizer_config.json mean that there is no longest text
)


class PublishedTokenizer:
    """Converts text to a model's inputs and back.

    Special tokens are those of a tokenizer.json, with its template around texts; or those that the
    caller names, with `before` and `after` around a text, and no pairs of texts.

    Attributes:
      vocab_size: ids are 0 .. vocab_size - 1.
      ids: special tokens that exist, by role (pad, bos, eos, cls, sep, mask, unk).
      padding_side, truncation_side: "right" or "left".
      max_length: the longest text, in tokens, that the model was published for; None is any.
      chat_template: Jinja source, or "".
      before, after: ids of the special tokens around a text.
      special_pattern: finds the spelling of special tokens.
    """

    def __init__(
        self,
        inner: plain.Tokenizer,
        config: Json,
        chat_template: str,
        spelled: Mapping[str, int] | None = None,
        before: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
    ):
        """Wraps a tokenizer of text/tokenizer.py.

        Args:
          inner: the tokenizer.
          config: the fields of tokenizer_config.json.
          chat_template: Jinja source, or "".
          spelled: ids of the special tokens that are recognized in texts; None for those of a
            tokenizer.json, with its template.
          before, after: ids of special tokens around a text, if they are not the template's.
        """
        self._inner = inner
        self._spelled = spelled
        self._library: tokenizers.Tokenizer | None = None
        self._pair: Frame | None = None
        self._token_to_id: Callable[[str], int | None]
        if spelled is not None:
            self._token_to_id = spelled.get
            self.special_pattern = any_of(spelled)
        else:
            assert isinstance(inner, plain.HuggingFace), "others have no template"
            self._library = inner.library
            self._token_to_id = inner.library.token_to_id
            self.special_pattern = inner.special_pattern
            single = inner.template(1)
            before = single.before
            after = single.after
            self._pair = inner.template(2)
        self.before = before
        self.after = after
        self.vocab_size = inner.vocab_size
        self.padding_side = config.get("padding_side", "right")
        self.truncation_side = config.get("truncation_side", inner.truncation_side)
        for name in ("padding_side", "truncation_side"):
            side = getattr(self, name)
            if side not in ("right", "left"):
                raise ConfigError(
                    f"tokenizer_config.json: {name}={quote_value(side)}: must be right or left."
                )
        longest = config.get("model_max_length") or MIN_ENDLESS_LENGTH
        if longest < 1:
            LOG.warning(
                "tokenizer_config.json: model_max_length=%s cuts nothing, as in transformers.",
                longest,
            )
        self.max_length = int(longest) if 1 <= longest < MIN_ENDLESS_LENGTH else None
        self.chat_template = chat_template
        self.tokens: dict[str, str] = {}
        self.ids: dict[str, int] = {}
        states_roles = any(f"{role}_token" in config for role in ROLES)
        for role in ROLES:
            candidates: tuple[str, ...] = ()
            named = content_of(config.get(f"{role}_token"))
            if named:
                candidates = (named,)
            elif not states_roles:
                candidates = plain.KNOWN.get(role, ("[UNK]", "<unk>"))
            for token in candidates:
                index = self._token_to_id(token)
                if index is not None:
                    self.tokens[role] = token
                    self.ids[role] = index
                    break
        self.bos_id = self.ids.get("bos")
        self.eos_id = self.ids.get("eos")

    def encode(
        self,
        text: str,
        *,
        special_tokens: bool = True,
        max_length: int | None = None,
        allow_special: bool = True,
    ) -> list[int]:
        """Encodes a text as at most max_length ids; truncation keeps the special tokens around it.

        Args:
          text: the text.
          special_tokens: whether to put the model's special tokens around it.
          max_length: the most ids; None is any number.
          allow_special: whether the spelling of a special token in the text, such as `</s>`, is
            that token. If False, it is plain text, as it should be in untrusted text.
        """
        ids = self._encode(text, allow_special)
        if not special_tokens:
            return self._cut(ids, max_length)
        if max_length is not None:
            max_length = max(max_length - len(self.before) - len(self.after), 0)
        return [*self.before, *self._cut(ids, max_length), *self.after]

    def _encode(self, text: str, allow_special: bool) -> list[int]:
        """Encodes a text without special tokens around it."""
        if not allow_special:
            return self._inner.encode(text)
        if self._library is None:
            return self.encode_guarded(text, "")
        with encoding_errors(), without_panics():
            return self._library.encode(text, add_special_tokens=False).ids

    def _cut(self, ids: list[int], room: int | None) -> list[int]:
        """Cuts ids to as many as there is room for, on the tokenizer's side."""
        if room is None or len(ids) <= room:
            return ids
        if self.truncation_side == "left":
            return ids[len(ids) - room :]
        return ids[:room]

    def encode_pair(
        self, text: str, second: str, *, max_length: int | None = None, allow_special: bool = True
    ) -> tuple[list[int], list[int]]:
        """Encodes a pair of texts as ids and, for each id, the text that it belongs to, 0 or 1.

        If they are too long for max_length, the longer text loses tokens first.
        """
        frame = self._pair
        if frame is None:
            raise ConfigError(
                "pairs of texts: need a tokenizer.json, which says how to join them; this model has"
                " none."
            )
        first = self._encode(text, allow_special)
        other = self._encode(second, allow_special)
        if max_length is not None:
            room = max(max_length - frame.specials(2), 0)
            kept, other_kept = longest_first(len(first), len(other), room)
            first = self._cut(first, kept)
            other = self._cut(other, other_kept)
        beginning = [*frame.before, *first, *frame.between]
        end = [*other, *frame.after]
        return beginning + end, [0] * len(beginning) + [frame.second_type] * len(end)

    def encode_guarded(self, text: str, guard: str) -> list[int]:
        """Encodes a text without special tokens around it.

        The spelling of a special token with `guard` after its first character is text.
        """
        if self._spelled is None:
            return self._inner.encode_spelled(text, guard).ids.tolist()
        # In a byte-level vocabulary a word's token starts with its space, so [MASK] swallows the
        # space before it.
        if self._inner.file == JSON and "mask" in self.tokens:
            text = text.replace(f" {self.tokens['mask']}", self.tokens["mask"])
        ids = []
        for between, token in split_at(self.special_pattern, text, guard):
            ids += self._inner.encode(between)
            if token:
                ids.append(self._spelled[token])
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Decodes ids to text, leaving out special tokens and ids beyond the vocabulary."""
        return self._inner.decode(ids)

    def token(self, index: int) -> str:
        """Returns the token of an id as the vocabulary spells it, special or not."""
        named = {i: self.tokens[role] for role, i in self.ids.items()}
        index = int(index)
        return named.get(index) or self.decode([index]) or self.spelling(index) or f"<{index}>"

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token by its spelling in the vocabulary; None if it has none."""
        index = self._token_to_id(token)
        if index is not None:
            return index
        if token.encode() not in self._pieces:
            return None
        return self._pieces.index(token.encode())

    def spelling(self, index: int) -> str:
        """Returns the spelling of an id that `decode` leaves out, such as a sentinel.

        Returns "" for an id beyond the vocabulary.
        """
        if self._library is not None:
            return self._library.id_to_token(index) or ""
        if index in self._spelled_by_id:
            return self._spelled_by_id[index]
        if index >= len(self._pieces):
            return ""
        return self._pieces[index].decode(errors="replace")

    @functools.cached_property
    def _spelled_by_id(self) -> dict[int, str]:
        return {index: token for token, index in (self._spelled or {}).items()}

    @functools.cached_property
    def _pieces(self) -> list[bytes]:
        return self._inner.pieces()

    @property
    def pad_id(self) -> int:
        for role in ("pad", "eos", "unk"):
            if role in self.ids:
                return self.ids[role]
        return 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            hints.instead("tokenizer", hints.TOKENIZER, name)
            or f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(
        self,
        texts: str | list[str],
        pairs: str | list[str] | None = None,
        *,
        max_length: int | None = None,
        pad_to: int | None = None,
        pad_to_multiple_of: int | None = None,
        allow_special: bool = True,
        **others: object,
    ) -> dict[str, np.ndarray]:
        """Tokenizes texts into a model's inputs, int32 [B, T], padded to the longest row or more.

        >>> batch = tokenizer(["a text", "and another"])  # doctest: +SKIP
        >>> output = model.apply({"params": params}, **batch)  # doctest: +SKIP

        Args:
          texts: one text or several.
          pairs: a second text for each (such as a question and its passage).
          max_length: longest row in tokens, special ones included; longer ones are cut. None is the
            model's own.
          pad_to: smallest T, so that few shapes are compiled; longer rows are refused unless
            max_length cuts them.
          pad_to_multiple_of: T is rounded up to a multiple of this.
          allow_special: as in `encode`.
          **others: refused, with what to write for arguments of other libraries.

        Returns:
          input_ids, attention_mask and, if the model distinguishes the texts of a pair,
          token_type_ids.
        """
        if others:
            unknown = f"tokenizer takes no {next(iter(others))!r}."
            raise ConfigError(hints.refused("tokenizer", hints.TOKENIZING, list(others)) or unknown)
        if isinstance(texts, str):
            texts = [texts]
        if isinstance(pairs, str):
            pairs = [pairs]
        rows: list[tuple[list[int], list[int]]]
        limits: dict[str, Any] = {
            "max_length": max_length or self.max_length,
            "allow_special": allow_special,
        }
        if pairs is None:
            rows = [(self.encode(text, **limits), []) for text in texts]
        elif len(texts) == len(pairs):
            rows = []
            for text, second in zip(texts, pairs, strict=True):
                rows.append(self.encode_pair(text, second, **limits))
        else:
            raise ConfigError(
                f"{len(texts)} texts and {len(pairs)} pairs: must be equal in number."
            )
        longest = max((len(ids) for ids, _ in rows), default=0)
        shape = (len(rows), _width(longest, pad_to, pad_to_multiple_of))
        ids_BT = np.full(shape, self.pad_id, np.int32)
        mask_BT = np.zeros(shape, np.int32)
        types_BT = np.zeros(shape, np.int32)
        for number, (ids, types) in enumerate(rows):
            at = slice(len(ids))
            if self.padding_side == "left":
                at = slice(shape[1] - len(ids), None)
            ids_BT[number, at] = ids
            mask_BT[number, at] = 1
            types_BT[number, at] = types or 0
        inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
        if types_BT.any():
            inputs["token_type_ids"] = types_BT
        return inputs


def _width(longest: int, pad_to: int | None, multiple: int | None) -> int:
    for name, value in (("pad_to", pad_to), ("pad_to_multiple_of", multiple)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value}: must be at least 1.")
    if pad_to is not None and longest > pad_to:
        raise ConfigError(
            f"pad_to={pad_to}: a row has {longest} tokens; raise it, or cut rows by"
            f" max_length={pad_to}."
        )
    width = max(1, longest, pad_to or 0)
    multiple = multiple or 1
    return math.ceil(width / multiple) * multiple
