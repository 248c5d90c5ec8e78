"""Files of token ids: plain `.bin` as nanoGPT's, `.bin` with Megatron's `.idx`, NumPy's `.npy`.

A plain file holds uint16, or uint32 where the vocabulary has more than 65,536 tokens. Its documents
end with the end-of-text id, as in `.npy`; Megatron's index says where they end.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import remote
from flaxformer_lite.storage.compressed import File
from flaxformer_lite.storage.fetch import on_disk
from flaxformer_lite.text.tokenizer import Tokenizer

SUFFIXES = (".bin", ".npy")
MAGIC = b"MMIDIDX\x00\x00"  # of an index: version, dtype, sequences, documents
HEADER = struct.Struct("<9sQBQQ")
# Megatron's numbers
DTYPES = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
CHUNK = 1 << 22  # tokens copied at a time
TokenFile = tuple[np.ndarray, np.ndarray]  # ids, memory-mapped, and the end of each document


def is_tokens(path: File) -> bool:
    """Returns whether a file holds token ids, judging by its name."""
    return path.suffix.lower() in SUFFIXES


def index_of(path: File) -> File | None:
    """Finds Megatron's index beside a file."""
    if path.suffix.lower() != ".bin":
        return None
    if not isinstance(path, Path):
        return remote.find(path.url.removesuffix(path.suffix) + ".idx")
    index = path.with_suffix(".idx")
    return index if index.is_file() else None


class Run(NamedTuple):
    """Neighboring tokens of one document.

    Attributes:
      split: "train" or "eval".
      file: number of the file.
      token: the index of the first token in the file.
      ids: the tokens; of a document's last run, with an end-of-text id.
      is_last: whether the document ends with them, or its part of the split.
    """

    split: str
    file: int
    token: int
    ids: np.ndarray
    is_last: bool


def read_runs(
    files: tuple[File, ...], known: Tokenizer, fraction: float, where: str
) -> Iterator[Run]:
    """Yields the documents of files in runs of at most CHUNK tokens.

    The end of the last file is held out: about `fraction` of all tokens, from the beginning of a
    document if one begins between half and twice as many tokens from the end.

    Args:
      files: those to read, in order.
      known: the tokenizer that wrote the ids.
      fraction: share of the tokens to hold out.
      where: the field and value to name in errors.

    Raises:
      ConfigError: a file is damaged, or has ids that the tokenizer lacks.
    """
    parts = [_open(path, known, f"{where}: {path.name}") for path in files]
    begins = np.cumsum([0, *(len(ids) for ids, _ in parts)])
    all_ends = []
    for begin, (_, ends) in zip(begins[:-1], parts, strict=True):
        all_ends.append(begin + ends)
    total = int(begins[-1])
    border = _border(np.concatenate(all_ends), total, fraction)
    if not 0 < border < total and 0 < fraction < 1:
        raise ConfigError(f"{where}: too few tokens to hold out {fraction:.0%} of them; give more.")
    with progress.read_progress("copying tokens", total) as advance:
        for split, low, high in (("train", 0, border), ("eval", border, total)):
            for file, token, piece, is_last in _pieces(parts, begins, low, high):
                ids = np.asarray(piece)
                _check(ids, known, where)
                if is_last and ids[-1] != known.eos_id:
                    ids = np.append(ids, known.eos_id)
                yield Run(split, file, token, ids, is_last)
                advance(len(piece))


def known_dtype(known: Tokenizer) -> type:
    """Returns the dtype that holds the ids of a tokenizer."""
    return np.uint16 if known.vocab_size <= 1 << 16 else np.uint32


def _pieces(
    parts: list[TokenFile], begins: np.ndarray, low: int, high: int
) -> Iterator[tuple[int, int, np.ndarray, bool]]:
    """Yields tokens low .. high - 1 of all files in runs of at most CHUNK.

    With each run come the number of its file, its place there, and whether it ends a document.
    """
    for file, (begin, (ids, ends)) in enumerate(zip(begins[:-1], parts, strict=True)):
        at = max(low - int(begin), 0)
        stop = min(high - int(begin), len(ids))
        for end in ends[np.searchsorted(ends, at, side="right") :]:
            if at >= stop:
                break
            until = min(int(end), stop)
            while at < until:
                to = min(at + CHUNK, until)
                yield file, at, ids[at:to], to == until
                at = to


def _border(ends: np.ndarray, total: int, fraction: float) -> int:
    """Returns the index of the first held-out token."""
    if fraction in (0, 1):
        return round(total * (1 - fraction))
    target = total * fraction
    at = int(ends[np.argmin(np.abs(ends - (total - target)))])
    if target / 2 <= total - at <= target * 2:
        return at
    return total - max(1, round(target))


def _check(ids: np.ndarray, known: Tokenizer, where: str) -> None:
    if ids.min() < 0 or ids.max() >= known.vocab_size:
        wrong = int(ids.min() if ids.min() < 0 else ids.max())
        raise ConfigError(
            f"{where}: holds the token {wrong}, where the tokenizer has {known.vocab_size}; set"
            " data.tokenizer.path to the one that wrote the file."
        )


def _open(path: File, known: Tokenizer, where: str) -> TokenFile:
    index = index_of(path)
    mapped = on_disk(str(path))
    try:
        if path.suffix.lower() == ".npy":
            ids = np.load(mapped, mmap_mode="r", allow_pickle=False).reshape(-1)
        elif index:
            return _megatron(mapped, index, where)
        else:
            ids = np.memmap(mapped, known_dtype(known), "r")
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"{where} cannot be read as token ids ({str(error).splitlines()[0]})."
        ) from None
    if not np.issubdtype(ids.dtype, np.integer) or not len(ids):
        raise ConfigError(f"{where}: must hold whole numbers, but has {len(ids)} of {ids.dtype}.")
    ends_of_chunks = []
    for at in range(0, len(ids), CHUNK):
        is_end = ids[at : at + CHUNK] == known.eos_id
        ends_of_chunks.append(np.flatnonzero(is_end) + at + 1)
    ends = np.concatenate(ends_of_chunks).astype(np.int64)
    if not len(ends) or ends[-1] != len(ids):
        ends = np.append(ends, len(ids))
    return ids, ends


def _megatron(path: Path, index: File, where: str) -> TokenFile:
    """Reads Megatron's index of a file.

    It holds a header, the length and the first byte of each sequence, and the first sequence of
    each document.
    """
    with index.open("rb") as file:
        data = file.read()
    try:
        magic, version, code, sequences, documents = HEADER.unpack_from(data)
        lengths = np.frombuffer(data, np.int32, sequences, HEADER.size).astype(np.int64)
        starts = np.frombuffer(data, np.int64, sequences, HEADER.size + 4 * sequences)
        first = np.frombuffer(data, np.int64, documents, HEADER.size + 12 * sequences)
        ids = np.memmap(path, DTYPES[code], "r")
        edges = np.concatenate([[0], np.cumsum(lengths)])
        fits = (
            (starts == edges[:-1] * ids.itemsize).all()
            and edges[-1] == len(ids)
            and lengths.min() >= 0
        )
        if magic != MAGIC or version != 1 or not fits:
            raise ValueError("the index does not fit the file")
        ends = np.unique(edges[first[1:]])
        if not len(ends) or ends[-1] != len(ids):
            raise ValueError("the documents of the index do not cover the file")
    except (struct.error, ValueError, OverflowError, KeyError, IndexError, OSError) as error:
        raise ConfigError(
            f"{where}, {index.name}: not Megatron's index, or damaged ({error})."
        ) from None
    return ids, ends[ends > 0]
