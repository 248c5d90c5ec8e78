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


class Records(Protocol):
    """Protocol of the rows of a text (data/text_records.py) or a table, as examples need them."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def length(self) -> int: ...

    @property
    def target_length(self) -> int: ...

    def __len__(self) -> int: ...


class CountedRecords(Records, Protocol):
    """The rows of one text or of several, with the occurrences of each id in training, [V]."""

    def __hash__(self) -> int: ...

    @property
    def counts(self) -> np.ndarray: ...


class TextRecords(CountedRecords, Protocol):
    """The rows of a text; each is a list of pieces of documents.

    `mixture` has the rows of all texts of a mixture; None where there is one text.
    """

    @property
    def mixture(self) -> CountedRecords | None: ...

    def row(self, index: int) -> list[np.ndarray]: ...

    def other_piece(self, index: int, rng: np.random.Generator, tokens: int = 1) -> np.ndarray: ...


class ReadTable(Protocol):
    """A table as it was read (data/table.py), with all its columns."""

    @property
    def rows(self) -> Sequence[Mapping[str, object]]: ...


class Encoder(Protocol):
    """What tasks encode rows with (data/encoded_rows.py).

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


class TableRecords(Records, Protocol):
    """The records of a table's rows (data/encoded_rows.py), of which examples are made.

    An example is one record, or in training several neighbors that share a row.
    """

    @property
    def frame(self) -> Frame: ...

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def table(self) -> ReadTable: ...

    @property
    def reference(self) -> np.ndarray | None: ...

    @property
    def row_of(self) -> np.ndarray: ...

    @property
    def skeleton(self) -> str: ...

    @property
    def num_texts(self) -> int:
        """The most texts of a record, where the store has `text_lengths`."""
        ...

    def record(self, example: int) -> Record:
        """Returns the record of an example, or the first of several."""
        ...

    def pieces(self, example: int) -> list[Record]:
        """Returns all records of an example."""
        ...

    def table_row(self, example: int) -> tuple[Mapping[str, Any], int]:
        """Returns the row of an example's first record by role, and its number from 0."""
        ...

    def column(self, name: str) -> np.ndarray:
        """Returns the entries of all records in a column, [records, *shape] or [total]."""
        ...

    def lengths(self, name: str) -> np.ndarray:
        """Returns the lengths of all records' entries in a column, [records] int32."""
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


def next_tokens(pieces: list[np.ndarray], records: Records) -> Example:
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
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], records: Records
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
    ids: np.ndarray, records: TableRecords, second: int | np.ndarray | None = None
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
