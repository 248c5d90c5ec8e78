"""The split into training and held-out text.

It is decided by the text itself, so it is the same on all machines and in all runs.
"""

import collections
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from flaxformer_lite.config import ConfigError

SPLITS = ("train", "eval")
ENOUGH = 8  # documents expected in the held-out split, for their hashes to decide
FAR = 2  # largest ratio between the actual and the configured held-out share
# Up to this many documents, the split uses their sizes; with more, hashes divide the text evenly.
MANY = 1 << 17
Document = tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """Assigns documents to the two splits.

    With enough documents (at least ENOUGH / fraction), those with a small hash are held out, so
    copies of a document are on the same side and adding documents moves none. With fewer, or if
    this would miss `fraction` of the characters by more than a factor of FAR (one big file among
    small ones), the tail of each document is held out, cut at the end of a line: about `fraction`
    of it, depending on its own text only. Pairs of texts, and documents too short for tails, are
    held out by hash, with the threshold that comes nearest to the fraction.
    """

    fraction: float
    below: int | None  # documents with a hash of at most this are held out; None: tails are
    characters: int  # of all documents

    def deal(self, documents: Iterable[Document]) -> Iterator[tuple[str, Document]]:
        """Yields pairs of "train" or "eval" and a document."""
        for document in documents:
            if self.below is not None:
                yield self.side(document), document
                continue
            at = _cut_at(document[0], self.fraction)
            for name, text in zip(SPLITS, (document[0][:at], document[0][at:]), strict=True):
                if text:
                    yield name, (text,)

    def side(self, document: Document) -> str:
        """Returns the split of a whole document, by its hash."""
        if self.below is not None and hash_of(document) <= self.below:
            return "eval"
        return "train"


def split_of(documents: Iterable[Document], fraction: float, where: str) -> Split:
    """Decides how to split the documents, in one pass over them.

    Args:
      documents: read once, and not kept.
      fraction: share of the text to hold out; 0 and 1 are exact.
      where: the field and value to name in errors.

    Raises:
      ConfigError: there is no text, or too little for both splits.
    """
    if fraction in (0, 1):
        characters = 0
        for document in documents:
            characters += sum(map(len, document))
        if not characters:
            raise ConfigError(f"{where}: contains no text, only whitespace.")
        return Split(fraction, 2**64 if fraction else -1, characters)
    # characters by hash, of the first MANY different documents
    sizes: collections.Counter[int] = collections.Counter()
    total = 0
    low = 0
    longest = 0
    texts = 0
    tails = 0
    threshold = int(fraction * 2**64)
    for document in documents:
        number = hash_of(document)
        size = sum(map(len, document))
        if len(sizes) < MANY or number in sizes:
            sizes[number] += size
        total = total + size
        low = low + size * (number <= threshold)
        longest = max(longest, len(document[0]))
        tails += len(document[0]) - _cut_at(document[0], fraction)
        texts = len(document)
    if not sizes:
        raise ConfigError(f"{where}: contains no text, only whitespace.")
    cuts = texts == 1
    target = fraction * total
    if cuts and len(sizes) * fraction < 1:
        if longest < 2 / fraction:
            way = "give more text or raise data.eval_fraction"
            raise ConfigError(f"{where}: too little text to hold out {fraction:.0%} of it; {way}.")
        return Split(fraction, None, total)
    hash_K = np.array(sorted(sizes), np.uint64)
    size_K = np.array([sizes[number] for number in hash_K.tolist()])
    enough = texts > 1 or len(sizes) * fraction >= ENOUGH
    threshold, is_near = _threshold(hash_K, size_K, low, target, fraction, where, enough)
    if cuts and not is_near and target / FAR <= tails <= target * FAR:
        return Split(fraction, None, total)
    return Split(fraction, threshold, total)


def split_rows(hash_N: np.ndarray, fraction: float, where: str) -> int:
    """Decides how to split the rows of a table, by their hashes only.

    A row counts as one, however long: a table with one long text is not trained on that text alone.

    Args:
      hash_N: their hashes, uint64.
      fraction: share of the rows to hold out.
      where: the field and value to name in errors.

    Returns:
      The threshold: rows with a hash of at most this are held out.

    Raises:
      ConfigError: there are not two different rows.
    """
    if not len(hash_N):
        raise ConfigError(f"{where}: contains no text, only whitespace.")
    hash_K, count_K = np.unique(hash_N, return_counts=True)
    if len(hash_K) < 2:
        what = "only one row" if len(hash_N) == 1 else "all rows are the same"
        raise ConfigError(
            f"{where}: {what}; needs at least two different ones, to hold one out, or"
            " data.eval_path."
        )
    low = int((hash_N <= np.uint64(int(fraction * 2**64))).sum())
    enough = len(hash_K) * fraction >= ENOUGH
    return _threshold(hash_K, count_K, low, fraction * len(hash_N), fraction, where, enough)[0]


def _threshold(
    hash_K: np.ndarray,
    size_K: np.ndarray,
    low: int,
    target: float,
    fraction: float,
    where: str,
    enough: bool,
) -> tuple[int, bool]:
    """Returns a threshold of hashes, and whether it is the fraction of all hashes.

    It is if this holds out about the target; else it is the hash that comes nearest.

    Args:
      hash_K: different hashes in order; MANY of them stand for more.
      size_K: the size of the documents with each, in characters or rows.
      low: the size of documents with a hash up to the fraction of all.
      target: the size to hold out.
      fraction: its share.
      where: the field and value to name in errors.
      enough: whether there are enough documents for their hashes to decide.
    """
    if len(hash_K) < 2:
        raise ConfigError(
            f"{where}: all documents are the same; needs at least two different ones, to hold one"
            " out."
        )
    threshold = int(fraction * 2**64)
    is_small = len(hash_K) < MANY
    if is_small:
        # At least one document on each side.
        threshold = min(max(threshold, int(hash_K[0])), int(hash_K[-1]) - 1)
        low = int(size_K[hash_K <= np.uint64(threshold)].sum())
    if enough and target / FAR <= low <= target * FAR:
        return threshold, True
    if is_small:
        gap_K = np.abs(np.cumsum(size_K)[:-1] - target)
        threshold = int(hash_K[gap_K.argmin()])
    return threshold, False


def hash_of(document: Document) -> int:
    """Returns the hash that decides the split of a document."""
    # Joined by a zero, so that ("ab", "c") and ("a", "bc") differ.
    return int.from_bytes(
        hashlib.blake2b("\0".join(document).encode(), digest_size=8).digest(), "big"
    )


def _cut_at(text: str, fraction: float) -> int:
    at = max(1, round(len(text) * (1 - fraction)))
    line = text.find("\n", at) + 1
    is_near = line - at <= (len(text) - at) // 2
    if line and is_near:
        return line
    return at
