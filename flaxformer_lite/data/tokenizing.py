"""Tokenizes a text on all cores of a host, in shards that outlive a killed process.

A shard is a file beside the output, which the same command finds when it is run again. Other hosts
that share data.cache wait for the one that tokenizes, or continue from its shards.
"""

import collections
import contextlib
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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

SMALL = 1 << 24  # characters of a text that is tokenized before other processes would have started
MOST = 16  # processes that one reader can keep busy


class Tokenizing:
    """The work of tokenizing a text, for `content_cache.folder`.

    Args:
      source: the text.
      split: returns how it is split; the first call reads all of it.
      chosen: the tokenizer.
    """

    def __init__(self, source: Source, split: Callable[[], Split], chosen: Tokenizer):
        self._source = source
        self._split = split
        self._chosen = chosen
        self._dtype = token_files.known_dtype(chosen)

    def write(self, folder: Path) -> None:
        """Writes train.bin and eval.bin (ids), train.offsets and eval.offsets.

        Raises:
          ConfigError: the tokenizer fails on the text, or nothing is left for a split.
          ChildProcessError: a process was killed. As after any other error, finished shards are
            kept.
        """
        if self._split().characters >= SMALL:
            parts = content_cache.parts_of(folder)
            parts.mkdir(exist_ok=True)
            self._join(map(shards.load, self._make(parts)), folder)
            return
        with progress.reading("tokenizing", self._split().characters) as advance:
            self._join(self._encoded(advance), folder)

    def _encoded(self, advance: Callable[[int], None]) -> Iterator[Arrays]:
        for shard in self._shards():
            yield shards.encode(shard, self._chosen, self._dtype)
            advance(sum(len(piece) for _, piece, _ in shard))

    def _shards(self) -> Iterator[list[Piece]]:
        return shards.grouped(
            shards.pieces(self._split().deal(self._source.documents())), shards.SHARD
        )

    def _make(self, parts: Path) -> list[Path]:
        """Makes the missing shards on all cores; returns the paths of all shards."""
        characters = self._split().characters
        paths = []
        waiting: collections.deque[tuple[int, Future]] = collections.deque()
        count = min(len(os.sched_getaffinity(0)), MOST, -(-characters // shards.SHARD))
        tokenizer = (type(self._chosen), self._chosen.definition, self._dtype)
        with (
            progress.reading("tokenizing", characters) as advance,
            _processes(count, tokenizer) as submit,
        ):
            for number, shard in enumerate(self._shards()):
                paths.append(parts / f"{number:06}-{shards.SHARD >> 10}k.npz")
                waiting.append((sum(len(piece) for _, piece, _ in shard), submit(shard, paths[-1])))
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


@contextlib.contextmanager
def _processes(
    count: int, tokenizer: tuple[type, bytes, type]
) -> Iterator[Callable[[list[Piece], Path], Future]]:
    """Starts processes that tokenize shards, and stops them at the end.

    Yields a function that submits a shard with its path.
    """
    idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()

    def make(shard: list[Piece], path: Path) -> None:
        if shards.is_valid(path):
            return
        process = idle.get()
        try:
            process.make(shard, path)
        finally:
            idle.put(process)

    with contextlib.ExitStack() as stack:
        threads = ThreadPoolExecutor(count)
        stack.callback(threads.shutdown, cancel_futures=True)
        for _ in range(count):
            process = _Process(tokenizer)
            stack.callback(process.end)
            idle.put(process)
        yield lambda shard, path: threads.submit(make, shard, path)


class _Process:
    """A single-threaded process that runs `shards.main`.

    Setting TOKENIZERS_PARALLELISM to "false" instead takes a quarter longer.
    """

    def __init__(self, tokenizer: tuple[type, bytes, type]):
        self._line, other = multiprocessing.Pipe()
        single_thread = {
            "TOKENIZERS_PARALLELISM": "true",
            "RAYON_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        # -P: the current folder may be a stranger's, and is searched only where it is on our path.
        command = [sys.executable, "-P", "-m", shards.__name__, str(other.fileno())]
        with other:  # a group of its own, as ctrl-c is for its parent
            self._run = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,  # of the parent; what libraries print is no result
                env=os.environ | single_thread,
                pass_fds=[other.fileno()],
                process_group=0,
            )
        with contextlib.suppress(OSError):  # it has ended, as `make` will say
            self._line.send(tokenizer)

    def make(self, shard: list[Piece], path: Path) -> None:
        """Tokenizes a shard into a file; raises what the process raised."""
        try:
            self._line.send((shard, path))
            failure = self._line.recv()
        except (EOFError, OSError):
            code = self._run.wait()
            how = f"ended with {code}"
            if code < 0:
                how = f"was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += ", as the system does where memory runs out"
            raise ChildProcessError(
                f"a process that tokenizes {how}; finished shards are kept: run the same command"
                " again."
            ) from None
        if failure:
            raise failure

    def end(self) -> None:
        """Kills the process."""
        self._run.kill()
        self._run.wait()
        self._line.close()
