"""The split into training and held-out text.

It is decided by the text itself, so it is the same on all machines and in all runs.
"""

import collections
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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


def split_of(
    documents: Iterable[Document], fraction: float, where: str, *, uncut: bool = False
) -> Split:
    """Decides how to split the documents, in one pass over them.

    Args:
      documents: read once, and not kept.
      fraction: share of the text to hold out; 0 and 1 are exact.
      where: the field and value to name in errors.
      uncut: whether documents must not be cut, because they have labels.

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
    cuts = texts == 1 and not uncut
    target = fraction * total
    if cuts and len(sizes) * fraction < 1:
        if longest < 2 / fraction:
            way = "give more text or raise data.eval_fraction"
            raise ConfigError(f"{where}: too little text to hold out {fraction:.0%} of it; {way}.")
        return Split(fraction, None, total)
    if len(sizes) < 2:
        raise ConfigError(
            f"{where}: all documents are the same; needs at least two different ones, to hold one"
            " out."
        )
    ordered = sorted(sizes)
    if len(sizes) < MANY:
        # At least one document on each side.
        threshold = min(max(threshold, ordered[0]), ordered[-1] - 1)
        low = sum(sizes[number] for number in ordered if number <= threshold)
    holds_enough = texts > 1 or len(sizes) * fraction >= ENOUGH
    if holds_enough and target / FAR <= low <= target * FAR:
        return Split(fraction, threshold, total)
    if cuts and target / FAR <= tails <= target * FAR:
        return Split(fraction, None, total)
    if len(sizes) < MANY:
        held = itertools.accumulate(sizes[number] for number in ordered[:-1])
        nearest = min(zip(held, ordered, strict=False), key=lambda pair: abs(pair[0] - target))
        threshold = nearest[1]
    return Split(fraction, threshold, total)


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
