"""Tokenizers behind one small protocol.

They are trained on the run's own text, plain bytes, or a file that the user names.

Every tokenizer trained here has the special tokens of all objectives, and T5's hundred sentinels at
the end of its vocabulary in reverse order: sentinel k has id vocab_size - 1 - k. Special tokens are
never recognized in text: a file that contains "[MASK]" is encoded as those characters.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import sentencepiece
import tokenizers

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.files.read import read_bytes
from flaxformer_lite.text import older_files, saved_files, special_tokens, token_text
from flaxformer_lite.text.bounded_steps import check_steps
from flaxformer_lite.text.escape_specials import (
    any_of,
    copy_literal,
    encoding_errors,
    library_errors,
    split_at,
    without_panics,
)
from flaxformer_lite.text.folder_rules import FolderRules, read_rules

NUM_SENTINELS = 100  # as T5's vocabularies have
NO_ID = -1  # an id that no token has
NUM_BYTES = 256
# The spellings of special tokens by their roles: ours, then published tokenizers', in the
# order of looking.
KNOWN = {
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>", "<|end_of_text|>"),
    "eos": ("[EOS]", "</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "[SEP]"),
    "bos": ("[BOS]", "<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>", "[CLS]"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
SPECIALS = tuple(names[0] for names in KNOWN.values())


Ids = np.ndarray | list[int]


class Tokenizer:
    """Text to ids and back; special ids are None if the vocabulary has no such token."""

    file: str  # name of the file that `save` writes
    vocab_size: int  # ids are 0 .. vocab_size - 1
    pad_id: int
    eos_id: int  # NO_ID of a published tokenizer that cannot be trained with
    bos_id: int | None
    cls_id: int | None
    sep_id: int | None
    mask_id: int | None
    sentinel_ids: tuple[int, ...]  # descending
    truncation_side: str = "right"  # at which texts that are too long lose tokens, or left
    # special tokens that a decoder's documents begin with; each ends with eos_id
    begin_ids: tuple[int, ...] = ()

    def __init__(self, definition: bytes):
        self.definition = definition  # the content of its file
        self.fingerprint = hash_parts(self.file, definition)

    def encode(self, text: str) -> list[int]:
        """Encodes a text as ids, without any special token."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        raise NotImplementedError

    def encode_spans(self, texts: list[str]) -> list[special_tokens.Spans]:
        """Encodes texts like `encode_batch`, with the characters that each token stands for."""
        raise NotImplementedError

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """Returns the special tokens that exist by their roles, the keys of KNOWN."""
        ids = {}
        for role in KNOWN:
            index = getattr(self, f"{role}_id")
            if index is not None:
                ids[role] = index
        return ids

    @functools.cached_property
    def spelled(self) -> dict[str, int]:
        """Returns the special tokens by the spelling that a chat template writes."""
        sentinels = {f"<extra_id_{k}>": i for k, i in enumerate(self.sentinel_ids)}
        return {KNOWN[role][0]: i for role, i in self.ids.items()} | sentinels

    @functools.cached_property
    def special_pattern(self) -> re.Pattern[str]:
        """Returns a pattern that finds the spelling of special tokens."""
        return any_of(self.spelled)

    def encode_spelled(self, text: str, guard: str) -> special_tokens.Spans:
        """Encodes a text with special tokens.

        A spelling with `guard` after its first character is text. Offsets do not count the guard.
        """
        parts: list[tuple[Ids, Ids, Ids]] = []
        column = 0
        for between, token in split_at(self.special_pattern, text, guard):
            (spans,) = self.encode_spans([between])
            parts.append((spans.ids, spans.start + column, spans.end + column))
            column = column + len(between) + len(token)
            if token:
                parts.append(([self.spelled[token]], [column - len(token)], [column]))
        ids, start, end_of_token = map(np.concatenate, zip(*parts, strict=True))
        return special_tokens.Spans(
            ids.astype(np.int32), start.astype(np.int32), end_of_token.astype(np.int32)
        )

    def with_tokens(self, names: Collection[str]) -> "Tokenizer":
        """Returns the tokenizer with more tokens, each one id wherever a text has it.

        They are no special tokens, which texts cannot spell, so that text to train on teaches them.

        Raises:
          ConfigError: the kind of tokenizer has a fixed vocabulary.
        """
        if not names:
            return self
        raise ConfigError(
            f"data.tokenizer.add={tuple(names)}: {self.file} holds a fixed vocabulary; use a"
            f" {saved_files.JSON}, such as one of data.tokenizer.name=byte_bpe."
        )

    def frame(self, skeleton: str) -> special_tokens.Frame:
        """Returns the special tokens that a model with this skeleton expects around its texts."""
        return usual_frame(self, skeleton)

    def decode(self, ids: Iterable[int]) -> str:
        """Decodes ids to text, leaving out special tokens and ids beyond the vocabulary.

        A model may have more logits than its tokenizer has tokens, as its table is padded to a
        round size.
        """
        raise NotImplementedError

    def pieces(self) -> list[bytes]:
        """Returns the text that each id stands for, as UTF-8; empty for special tokens."""
        texts = [b""] * self.vocab_size
        for i in self._with_text(range(self.vocab_size)):
            texts[i] = self._piece(i)
        return texts

    def _piece(self, index: int) -> bytes:
        """Returns the text of an id that is no special token, as UTF-8."""
        raise NotImplementedError

    def _with_text(self, ids: Iterable[int]) -> list[int]:
        """Returns the ids that are in the vocabulary and no special tokens."""
        special = self.specials()
        return [int(i) for i in ids if 0 <= i < self.vocab_size and int(i) not in special]

    def _set_ids(self, ids: Mapping[str, int | None]) -> None:
        """Sets `pad_id` and the like by role; one that pads with no token of its own ends texts."""
        for role in KNOWN:
            setattr(self, f"{role}_id", ids.get(role))
        if ids.get("eos") is None:
            self.eos_id = NO_ID
        if ids.get("pad") is None:
            self.pad_id = self.eos_id

    @functools.cached_property
    def ordinary_ids(self) -> np.ndarray:
        """Returns the ids that stand for text, int32 [ids]."""
        return np.asarray([i for i, piece in enumerate(self.pieces()) if piece], np.int32)

    @functools.cached_property
    def word_edges(self) -> np.ndarray:
        """Returns bool [2, V]: whether an id begins, and whether it ends, within a word.

        It does so with a letter or digit, or in the middle of a character.
        """
        pieces = self.pieces()
        begins = [_is_within_word(piece[:1]) for piece in pieces]
        ends = [_is_within_word(piece[-1:]) for piece in pieces]
        return np.asarray([begins, ends])

    def starts_word(self, ids: np.ndarray) -> np.ndarray:
        """Returns bool [T]: False if a token continues the word of the token before it."""
        begins, ends = self.word_edges
        return np.concatenate([[True], ~(begins[ids[1:]] & ends[ids[:-1]])])[: len(ids)]

    def save(self, folder: str | Path) -> None:
        """Writes the file from which `load` restores this tokenizer."""
        Path(folder, self.file).write_bytes(self.definition)

    def specials(self) -> set[int]:
        """Returns the ids that stand for no text."""
        return {*self.ids.values(), *self.sentinel_ids}

    def _end_with_sentinels(self, size: int) -> None:
        self.vocab_size = size + NUM_SENTINELS
        self.sentinel_ids = tuple(range(self.vocab_size - 1, size - 1, -1))


class Bytes(Tokenizer):
    """The 256 bytes of UTF-8, after the special tokens."""

    file = saved_files.BYTES
    first = len(SPECIALS)  # the id of byte 0

    def __init__(
        self,
        definition: bytes = f"UTF-8 bytes after the special tokens {' '.join(SPECIALS)}\n".encode(),
    ):
        super().__init__(definition)
        self._set_ids({role: i for i, role in enumerate(KNOWN)})
        self._end_with_sentinels(self.first + NUM_BYTES)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        rows = []
        with encoding_errors():
            for text in texts:
                values = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
                rows.append((values + self.first).tolist())
        return rows

    def encode_spans(self, texts: list[str]) -> list[special_tokens.Spans]:
        rows = []
        for text, ids in zip(texts, self.encode_batch(texts), strict=True):
            character = np.repeat(np.arange(len(text)), [len(c.encode()) for c in text])
            rows.append(special_tokens.Spans(np.asarray(ids, np.int32), character, character + 1))
        return rows

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self._piece, self._with_text(ids))).decode(errors="replace")

    def _piece(self, index: int) -> bytes:
        return bytes([index - self.first])


class HuggingFace(Tokenizer):
    """A `tokenizer.json`: the byte-level BPE trained here, or a published one.

    Attributes:
      library: the tokenizer of the `tokenizers` library.
    """

    file = saved_files.JSON

    def __init__(
        self,
        definition: bytes,
        tokens: Mapping[str, str] = MappingProxyType({}),
        frame: str = "published",
    ):
        """Reads a tokenizer.json.

        Args:
          definition: its content.
          tokens: the spelling of special tokens by role, as the folder names them beside it.
          frame: "published": special tokens are those of `tokens`, others are found by their usual
            spelling, and documents begin as the file's template begins texts; or "end": `tokens`
            count only if no end of text has a usual spelling, and documents begin with nothing.
        """
        super().__init__(definition)
        with library_errors("the library refuses it"), without_panics():
            self.library = tokenizers.Tokenizer.from_str(definition.decode())
        self.library.no_padding()
        if self.library.truncation is not None:
            self.truncation_side = self.library.truncation["direction"]
        self.library.no_truncation()
        self.vocab_size = 1 + max(self.library.get_vocab(with_added_tokens=True).values())
        usual = {role: next(self._ids(*names), None) for role, names in KNOWN.items()}
        self._usual = usual
        ids = dict(usual)
        # Such folders could be trained with before their `tokens` were read; their runs go on.
        if frame == "published" or usual["eos"] is None:
            for role in KNOWN:
                named = next(self._ids(tokens.get(role, "")), None)
                if named is not None:
                    ids[role] = named
        self._set_ids(ids)
        self.named_tokens: dict[str, str] = {}  # by role, where the file alone does not tell
        if ids != usual:
            for role, index in ids.items():
                if index is not None:
                    self.named_tokens[role] = str(self.library.id_to_token(index))
            self.fingerprint = hash_parts(self.file, definition, repr(self.named_tokens))
        if frame == "published":
            self.begin_ids = self.template(1).before
        self.sentinel_ids = tuple(self._ids(*(f"<extra_id_{k}>" for k in range(NUM_SENTINELS))))

    def save(self, folder: str | Path) -> None:
        super().save(folder)
        # Only what is not found by its usual spelling, as a token that is named is a special one.
        config = {}
        for role, token in self.named_tokens.items():
            if self.ids[role] != self._usual[role]:
                config[f"{role}_token"] = token
        if config:
            Path(folder, saved_files.CONFIG).write_text(
                f"{json.dumps(config, indent=2)}\n", encoding="utf-8"
            )

    def with_tokens(self, names: Collection[str]) -> "HuggingFace":
        added = self.library.get_added_tokens_decoder().values()
        if {token.content for token in added}.issuperset(names):
            return self  # a run's own, as it was saved
        library = tokenizers.Tokenizer.from_str(self.definition.decode())
        library.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in names])
        grown = HuggingFace(library.to_str().encode(), self.named_tokens)
        grown.begin_ids = self.begin_ids
        return grown

    @functools.cached_property
    def _literal(self) -> tuple[tokenizers.Tokenizer, str]:
        return copy_literal(self.library)

    def literal(self) -> tokenizers.Tokenizer:
        """Returns the library's tokenizer for texts in which special tokens are text."""
        return self._literal[0]

    @functools.cached_property
    def spelled(self) -> dict[str, int]:
        added = self.library.get_added_tokens_decoder().items()
        return {token.content: i for i, token in added if token.special and len(token.content) > 1}

    def encode_spelled(self, text: str, guard: str) -> special_tokens.Spans:
        tokenizer, mark = self._literal
        marked = ""
        # guards are gone before there are marks, which may hold a short one
        for between, token in split_at(self.special_pattern, text, guard):
            marked += between
            if token:
                marked += f"{mark}{token}{mark}"
        with encoding_errors():
            encoded = tokenizer.encode(marked, add_special_tokens=False)
        marks = np.asarray([match.start() for match in re.finditer(mark, marked)])
        offsets = np.asarray(encoded.offsets).reshape(-1, 2)
        start, end = (offsets - len(mark) * np.searchsorted(marks, offsets)).T.astype(np.int32)
        return special_tokens.Spans(np.asarray(encoded.ids, np.int32), start, end)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        with encoding_errors():
            encoded = self.literal().encode_batch_fast(texts, add_special_tokens=False)
        return [each.ids for each in encoded]

    def encode_spans(self, texts: list[str]) -> list[special_tokens.Spans]:
        with encoding_errors():
            encoded = self.literal().encode_batch(texts, add_special_tokens=False)
        return [_spans(e.ids, e.offsets) for e in encoded]

    def template(self, texts: int) -> special_tokens.Frame:
        """Returns the special tokens that tokenizer.json puts around one text or two."""
        text = "a"
        if 0 not in self.library.encode(text).sequence_ids:  # a vocabulary may lack letters
            tokens = self.library.get_vocab()
            text = next(token for token in tokens if 0 in self.library.encode(token).sequence_ids)
        second = None
        if texts == 2:
            second = text
        return special_tokens.of_template(self.library.encode(text, second))

    def frame(self, skeleton: str) -> special_tokens.Frame:
        frame = self.template(2)
        if not frame.specials(2):  # no template, or one that adds nothing
            frame = super().frame(skeleton)
        elif skeleton != "encoder":
            frame = dataclasses.replace(frame, second_type=0)
        return dataclasses.replace(frame, truncation_side=self.truncation_side)

    def decode(self, ids: Iterable[int]) -> str:
        known = [int(i) for i in ids if i >= 0]  # the library leaves out ids that are too large
        return self.library.decode(known, skip_special_tokens=True)

    def pieces(self) -> list[bytes]:
        tokens = [self.library.id_to_token(i) or "" for i in range(self.vocab_size)]
        added = self.library.get_added_tokens_decoder()
        special = self.specials() | {i for i, token in added.items() if token.special}
        kinds = {"ByteLevel": token_text.byte_level, "WordPiece": token_text.word_piece}
        match = re.search("|".join(kinds), str(self.library.decoder))
        read = token_text.meta_space
        if match:
            read = kinds[match[0]]
        texts = []
        for i, token in enumerate(tokens):
            text = b""
            if i in added and i not in special:
                text = token.encode()
            elif i not in special:
                text = read(token)
            texts.append(text)
        return texts

    def _ids(self, *names: str) -> Iterator[int]:
        return (i for i in map(self.library.token_to_id, names) if i is not None)


class SentencePiece(Tokenizer):
    """A sentencepiece model, trained here or published.

    T5's sentinels come after its own vocabulary.

    The character U+2581, sentencepiece's mark of a space, is decoded as a space.
    """

    file = saved_files.SENTENCEPIECE

    def __init__(self, definition: bytes):
        super().__init__(definition)
        self._model = sentencepiece.SentencePieceProcessor(model_proto=definition)
        self._end_with_sentinels(self._model.get_piece_size())
        own = {
            "pad": self._model.pad_id(),
            "eos": self._model.eos_id(),
            "bos": self._model.bos_id(),
        }
        if own["eos"] < 0:
            raise ValueError("no end-of-text token; train the model with an eos_id")
        ids = {role: self._first(KNOWN[role]) for role in ("cls", "sep", "mask")}
        ids |= {role: i for role, i in own.items() if i >= 0}
        self._set_ids(ids)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        with encoding_errors():
            return self._model.encode(texts, num_threads=-1)  # one per core

    def encode_spans(self, texts: list[str]) -> list[special_tokens.Spans]:
        rows = []
        with encoding_errors():
            protos = self._model.encode(texts, return_type="proto")
        for encoded in protos:
            # its own ends count bytes
            end = np.cumsum([len(piece.surface) for piece in encoded.pieces])
            start = np.concatenate([[0], end[:-1]])[: len(end)]
            ids = [piece.id for piece in encoded.pieces]
            rows.append(_spans(ids, list(zip(start, end, strict=True))))
        return rows

    def decode(self, ids: Iterable[int]) -> str:
        return self._model.decode(self._with_text(ids))  # the library raises for unknown ids

    def _piece(self, index: int) -> bytes:
        return token_text.meta_space(self._model.id_to_piece(index))

    def _first(self, names: tuple[str, ...]) -> int | None:
        for name in names:
            index = self._model.piece_to_id(name)
            if index != self._model.unk_id():
                return index
        return None


def usual_frame(tokenizer: Tokenizer, skeleton: str) -> special_tokens.Frame:
    """Returns the default frame: BERT's for encoders, end-of-text for encoder-decoders."""
    cls: tuple[int, ...] = ()
    if skeleton == "encoder" and tokenizer.cls_id is not None:
        cls = (tokenizer.cls_id,)
    last = {"encoder": tokenizer.sep_id, "encoder_decoder": tokenizer.eos_id}.get(skeleton)
    end: tuple[int, ...] = ()
    if last is not None:
        end = (last,)
    return special_tokens.Frame(cls, end, end, int(skeleton == "encoder"))


def hash_parts(file: str, definition: bytes, *others: str) -> str:
    """Returns the fingerprint of a tokenizer: of its file's name and content, and of others."""
    digest = hashlib.sha256(file.encode() + definition)
    for other in others:
        digest.update(other.encode())
    return digest.hexdigest()[:16]


def _is_within_word(byte: bytes) -> bool:
    return byte.isalnum() or byte >= b"\x80"


FILES = (HuggingFace.file, SentencePiece.file, "spiece.model", Bytes.file)  # in this order


def load(
    path: str | Path, *, given: str | Path | None = None, frame: str = "published"
) -> Tokenizer:
    """Loads a tokenizer from a file or a folder.

    A file is a `tokenizer.json` or a sentencepiece `.model`; a folder is one that `save` wrote to,
    or of a published model.

    Args:
      path: a file or folder on this machine.
      given: how messages name it; None is path.
      frame: `data.tokenizer.frame`, as in `HuggingFace`.

    Raises:
      ConfigError: there is no such file, or it cannot be read as a tokenizer.
    """
    if given is None:
        given = path
    where = f"data.tokenizer.path={str(given)!r}"
    path = expand_home(path)
    rules = FolderRules()
    if path.is_dir():
        rules = read_rules(path)
        if not any((path / name).is_file() for name in (HuggingFace.file, Bytes.file)):
            made = older_files.make_tokenizer(path)
            if made is not None:
                definition = rules.apply(made.definition).encode()
                return _with_end(HuggingFace(definition, made.tokens, frame), where)
        files = [path / name for name in FILES if (path / name).exists()]
        if not files:
            raise ConfigError(
                f"{where}: has none of {', '.join(FILES)}, one of which training needs."
            )
        path = files[0]
    if path.suffix not in (".json", ".model", ".bytes"):
        raise ConfigError(f"{where}: must be a tokenizer.json or a sentencepiece .model.")
    if path.suffix != ".json":
        rules.check_followed(path)
    try:
        content = read_bytes(path, limit=saved_files.MAX_TOKENIZER_BYTES)
        loaded: Tokenizer
        if path.suffix == ".json":
            check_steps(content.decode())
            definition = rules.apply(content.decode()).encode()
            loaded = HuggingFace(definition, rules.tokens, frame)
        elif path.suffix == ".model":
            loaded = SentencePiece(content)
            if frame == "published" and rules.add_bos and loaded.bos_id is not None:
                loaded.begin_ids = (loaded.bos_id,)
        else:
            loaded = Bytes(content)
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError(f"{where}: cannot be read as a tokenizer ({error}).") from error
    return _with_end(loaded, where)


def _with_end(loaded: Tokenizer, where: str) -> Tokenizer:
    if loaded.eos_id == NO_ID:
        raise ConfigError(
            f"{where}: cannot be read as a tokenizer (no end-of-text token; one of"
            f" {', '.join(KNOWN['eos'])} must be in the vocabulary)."
        )
    return loaded


def _spans(ids: list[int], offsets: list[tuple[int, int]]) -> special_tokens.Spans:
    # a quarter of the time that np.asarray takes for a list of pairs
    flat = np.fromiter(itertools.chain.from_iterable(offsets), np.int32, 2 * len(offsets))
    return special_tokens.Spans(np.asarray(ids, np.int32), flat[::2], flat[1::2])
