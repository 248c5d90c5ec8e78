"""Rows of fixed shape, built from pieces of different lengths, and what the pieces come from."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from flaxformer_lite.text.special_tokens import Frame, Spans

# {"inputs": ..., "targets": ...}; a batch's are stacked
Example = dict[str, dict[str, np.ndarray]]
Record = Mapping[str, np.ndarray]  # an example as it is stored: ids [T] int32, label [] int32, ...
# a record as a task's `encode` returns it, of arrays and numbers
Encoded = Mapping[str, np.ndarray | np.generic | float]
ClassNames = Mapping[str, tuple[str, ...]]  # of each column of a table that has classes


class StoredColumn(NamedTuple):
    """A column of a store (data/store.py), of which each record has an entry.

    Attributes:
      dtype: "token" (uint16, or uint32 where the vocabulary has more than 65,536 entries), "key"
        (a 64-bit hash, of which equal ones get one number, int32), or a name of numpy's.
      shape: the shape of each entry; None is one axis of any length.
      like: a column whose entries have the same lengths, and so its offsets.
    """

    dtype: str
    shape: tuple[int, ...] | None = None
    like: str = ""


class Tokenizer(Protocol):
    """Protocol of the tokenizers (text/tokenizer.py) that objectives use."""

    vocab_size: int
    pad_id: int
    eos_id: int
    cls_id: int | None
    sep_id: int | None
    mask_id: int | None
    sentinel_ids: tuple[int, ...]

    @property
    def ordinary_ids(self) -> np.ndarray: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def pieces(self) -> list[bytes]: ...

    def starts_word(self, ids: np.ndarray) -> np.ndarray: ...

    def frame(self, skeleton: str, /) -> Frame: ...


class Encoder(Protocol):
    """Encodes the texts of a table for a task (data/encoding.py).

    `frame` joins texts without special tokens to rows with them: their `token_ids`, or `spans`.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def frame(self) -> Frame: ...

    @property
    def length(self) -> int: ...

    @property
    def target_length(self) -> int: ...

    @property
    def skeleton(self) -> str: ...

    @property
    def classes(self) -> ClassNames:
        """The names of the classes that the table numbers, by role."""
        ...

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]: ...

    def spans(self, texts: Sequence[str]) -> list[Spans]: ...

    def conversations(
        self, template: str, chats: Sequence[dict[str, Any]], learn: str
    ) -> Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, int | None]]: ...

    def keys(self, texts: Sequence[str]) -> np.ndarray:
        """Returns a number of each text, [N] uint64, which equal texts have in common."""
        ...

    def has(self, role: str) -> bool:
        """Returns whether any row of the table has a value for this role."""
        ...


class Rows(Protocol):
    """The rows of a split (data/records.py), of which examples are made.

    A row is one record, or several pieces that share it: of the documents of a text, or of
    neighboring rows of a table.
    """

    def __hash__(self) -> int: ...

    def __len__(self) -> int: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def frame(self) -> Frame: ...

    @property
    def length(self) -> int: ...

    @property
    def target_length(self) -> int: ...

    @property
    def skeleton(self) -> str: ...

    def pieces(self, row: int) -> list[Record]:
        """Returns the record of a row, or the pieces that share it; of a text, only its ids."""
        ...

    def other_piece(self, row: int, rng: np.random.Generator, tokens: int = 1) -> np.ndarray:
        """Draws the ids of a piece of another document than a row begins with.

        One of `tokens` ids or more is preferred.
        """
        ...

    def column(self, name: str) -> np.ndarray:
        """Returns the entries of all records in a column, [records, *shape] or [total]."""
        ...

    def lengths(self, name: str) -> np.ndarray:
        """Returns the lengths of all records' entries in a column, [records] int32."""
        ...

    @property
    def num_texts(self) -> int:
        """The most texts of a record, where `text_lengths` counts them."""
        ...

    @property
    def counts(self) -> np.ndarray:
        """The occurrences of each id in training, of all sources of a mixture, [V] int64."""
        ...

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows of the table by role."""
        ...

    @property
    def table_rows(self) -> np.ndarray:
        """The number of the table row of each record, [records]."""
        ...

    def table_row(self, row: int) -> Mapping[str, Any]:
        """Returns the table's values of a row's first record, by column and by role."""
        ...

    @property
    def reference(self) -> np.ndarray | None:
        """The predictions of the starting weights, [rows, ...], where they are needed."""
        ...


TOKEN_IDS = ("input_ids", "decoder_input_ids")  # the inputs that are token ids
PACKING = "packing"  # the input that says in which rows the tokens of a batch are computed


def packed_shape(batch: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the shape of a batch's packing; without one, the lengths of its rows of tokens."""
    packing = batch["inputs"].get(PACKING)
    if packing is not None:
        return tuple(packing.shape)
    names = (name for name in TOKEN_IDS if name in batch["inputs"])
    return tuple(batch["inputs"][name].shape[-1] for name in names)


def row_ids(records: Rows, row: int) -> list[np.ndarray]:
    """Returns the ids of the pieces that share a row of a text, int32; of pairs, both sides."""
    return [ids for piece in records.pieces(row) for ids in piece.values()]


def fill_row(pieces: Sequence[np.ndarray], length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates pieces into ids and segment ids, [length] int32.

    The segment id is 1 for the first piece, 2 for the second, and 0 for padding.
    """
    ids = np.full(length, pad, np.int32)
    segments = np.zeros(length, np.int32)
    at = 0
    for number, piece in enumerate(pieces, start=1):
        ids[at : at + len(piece)] = piece
        segments[at : at + len(piece)] = number
        at += len(piece)
    return ids, segments


def next_tokens(pieces: list[np.ndarray], records: Rows) -> Example:
    """Builds an example of next-token prediction from records.length + 1 tokens.

    The label is the next token; its weight is 0 if it belongs to another document or is padding.
    """
    ids, segments = fill_row(pieces, records.length + 1, records.tokenizer.pad_id)
    same = (segments[1:] == segments[:-1]) & (segments[1:] > 0)
    return {
        "inputs": {"input_ids": ids[:-1], "segment_ids": segments[:-1]},
        "targets": {"labels": ids[1:], "weights": same.astype(np.float32)},
    }


def encoder_decoder(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], records: Rows
) -> Example:
    """Builds an example for an encoder-decoder, where source i is visible to target i only.

    The decoder's input is its labels shifted right within each target, starting with the padding
    id, as T5 does; objectives/base.py puts another family's start token there.
    """
    pad = records.tokenizer.pad_id
    ids, segments = fill_row(sources, records.length, pad)
    labels, label_segments = fill_row(targets, records.target_length, pad)
    shifted, _ = fill_row(
        [np.concatenate([[pad], target[:-1]]) for target in targets], records.target_length, pad
    )
    inputs = {"input_ids": ids, "segment_ids": segments, "decoder_input_ids": shifted}
    inputs["decoder_segment_ids"] = label_segments
    return {
        "inputs": inputs,
        "targets": {"labels": labels, "weights": (label_segments > 0).astype(np.float32)},
    }


def pad_row(
    ids: np.ndarray, records: Rows, second: int | np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Pads the ids of a row to the inputs of a model, each [T] int32.

    There are token types only where the frame has a second one.

    Args:
      ids: int32 [at most T].
      records: has the length T and the padding id.
      second: the column at which the second text begins; None without one.
    """
    size = len(ids)
    # numpy.pad takes several times as long
    padded = np.full(records.length, records.tokenizer.pad_id, ids.dtype)
    padded[:size] = ids
    mask = np.zeros_like(padded)
    mask[:size] = 1
    inputs = {"input_ids": padded, "attention_mask": mask}
    if records.frame.second_type:
        types = np.zeros_like(padded)
        types[size if second is None else second : size] = records.frame.second_type
        inputs["token_type_ids"] = types
    return inputs
