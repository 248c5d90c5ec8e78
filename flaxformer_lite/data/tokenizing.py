"""Tokenizes a text on all cores of a host, in shards that outlive a killed process.

A shard is a file beside the output, which the same command finds when it is run again. Other hosts
that share data.cache wait for the one that tokenizes, or continue from its shards.
"""

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import shards, token_files
from flaxformer_lite.data.shards import Arrays, Piece
from flaxformer_lite.data.split import SPLITS, Split
from flaxformer_lite.data.text import Source
from flaxformer_lite.runtime import progress
from flaxformer_lite.storage import content_cache
from flaxformer_lite.text.tokenizer import Tokenizer

SMALL = 1 << 24  # characters of a text that is not worth shards
MOST = 16  # threads that one reader can keep busy


class Tokenizing:
    """The work of tokenizing a text, for `content_cache.folder`.

    Args:
      source: the text.
      split: returns how it is split; the first call reads all of it.
      chosen: the tokenizer.
      begin: ids before each text.
    """

    def __init__(
        self,
        source: Source,
        split: Callable[[], Split],
        chosen: Tokenizer,
        begin: Sequence[int] = (),
    ):
        self._source = source
        self._split = split
        self._chosen = chosen
        self._begin = begin
        self._dtype = token_files.known_dtype(chosen)

    def write(self, folder: Path) -> None:
        """Writes train.bin and eval.bin (ids), train.offsets and eval.offsets.

        Raises:
          ConfigError: the tokenizer fails on the text, or nothing is left for a split. As after any
            other error, finished shards are kept.
        """
        if self._split().characters >= SMALL:
            parts = content_cache.parts_of(folder)
            parts.mkdir(exist_ok=True)
            self._join(map(shards.load, self._make(parts)), folder)
            return
        with progress.read_progress("tokenizing", self._split().characters) as advance:
            self._join(self._encoded(advance), folder)

    def _encoded(self, advance: Callable[[int], None]) -> Iterator[Arrays]:
        for shard in self._shards():
            yield shards.encode(shard, self._chosen, self._dtype, self._begin)
            advance(sum(len(piece.text) for piece in shard))

    def _shards(self) -> Iterator[list[Piece]]:
        return shards.grouped(
            shards.pieces(self._split().deal(self._source.documents())), shards.SHARD
        )

    def _make(self, parts: Path) -> list[Path]:
        """Makes the missing shards on all cores; returns the paths of all shards.

        Threads are enough: the libraries that tokenize hold Python's lock for 4% of their time.
        """
        characters = self._split().characters
        paths = []
        waiting: collections.deque[tuple[int, Future]] = collections.deque()
        count = min(len(os.sched_getaffinity(0)), MOST, -(-characters // shards.SHARD))
        ended = threading.Event()

        def make(shard: list[Piece], path: Path) -> None:
            if not shards.is_valid(path):
                pieces = _until(ended, shard)
                made = shards.encode(pieces, self._chosen, self._dtype, self._begin)
                shards.save(path, made)

        with contextlib.ExitStack() as stack:
            stack.enter_context(_one_thread_each(self._chosen))
            advance = stack.enter_context(progress.read_progress("tokenizing", characters))
            threads = ThreadPoolExecutor(count)
            # Callbacks run in reverse: threads are told to end before they are waited for.
            stack.callback(threads.shutdown, cancel_futures=True)
            stack.callback(ended.set)
            for number, shard in enumerate(self._shards()):
                # The size is part of the name, so that shards of another size are not taken for
                # these.
                paths.append(parts / f"{number:06}-{shards.SHARD >> 10}k.npz")
                size = sum(len(piece.text) for piece in shard)
                waiting.append((size, threads.submit(make, shard, paths[-1])))
                # Bounded, as every shard that waits has its text in memory.
                while len(waiting) > 2 * count:
                    size, made = waiting.popleft()
                    made.result()
                    advance(size)
            for size, made in waiting:
                made.result()
                advance(size)
        return paths

    def _join(self, parts: Iterable[Arrays], folder: Path) -> None:
        ends = dict.fromkeys(SPLITS, 0)
        with contextlib.ExitStack() as stack:
            names = [f"{split}.{kind}" for split in SPLITS for kind in ("bin", "offsets")]
            files = {name: stack.enter_context((folder / name).open("wb")) for name in names}
            for name in SPLITS:
                files[f"{name}.offsets"].write(np.int64(0).tobytes())
            for part in parts:
                for name in SPLITS:
                    files[f"{name}.bin"].write(part[f"{name}.bin"].tobytes())
                    files[f"{name}.offsets"].write((part[f"{name}.offsets"] + ends[name]).tobytes())
                    ends[name] += len(part[f"{name}.bin"])
        for name, end in ends.items():
            if not end and self._split().fraction != {"train": 1, "eval": 0}[name]:
                raise ConfigError(
                    f"{self._source.where}: no text left for the {name} split; give more text."
                )


def _until(ended: threading.Event, shard: list[Piece]) -> Iterator[Piece]:
    """Yields the pieces of a shard; raises CancelledError once the work has ended."""
    for piece in shard:
        if ended.is_set():
            raise CancelledError
        yield piece


@contextlib.contextmanager
def _one_thread_each(chosen: Tokenizer) -> Iterator[None]:
    """Keeps a tokenizer that several threads share from starting its own threads."""
    usual = chosen.threads
    chosen.encode("")  # fills the tokenizer's caches before threads share it
    chosen.threads = 1
    try:
        yield
    finally:
        chosen.threads = usual
