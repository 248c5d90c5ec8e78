"""Kills processes that tokenize one text together at random instants, and changes it in between.

    python -m tools.faults_store --turns=100
    python -m tools.faults_store --turns=100 --no-locks

Each turn kills one process or all of them. Wanted: those that live end without an error, and what
they have tokenized is what one process alone makes of the same text.
"""

import argparse
import fcntl
import hashlib
import multiprocessing
import random
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

from flaxformer_lite.config import DataConfig, TokenizerConfig
from flaxformer_lite.data import documents, source
from flaxformer_lite.data.documents import open_corpus
from flaxformer_lite.data.records import Corpus
from flaxformer_lite.text.tokenizer import Bytes

FILES = 6
LINES = 800  # of each file at first
BATCH_CHARACTERS = 2000
BATCH_SECONDS = 0.005
PART_SECONDS = 0.1  # after a part, in which a process is killed
MAX_SECONDS = 120  # of a turn


def open_text(folder: Path, cache: Path) -> Corpus:
    """Tokenizes the files of a folder unless it is done."""
    data = DataConfig(path=str(folder), cache=str(cache), tokenizer=TokenizerConfig(name="bytes"))
    return open_corpus(data, ("text",))


def hash_of(corpus: Corpus) -> str:
    """Hashes all that is stored of a text."""
    store = corpus.tokens["train"].store
    digest = hashlib.sha256(f"{store.offsets('ids').tolist()} {store.splits}".encode())
    for name in (*documents.TEXT, *documents.COLUMNS):
        digest.update(store.values(name).tobytes())
    return digest.hexdigest()


def build(folder: Path, cache: Path, due: str, *, locks: bool) -> None:
    """Does so slowly and in parts, as one of several processes."""
    encode = Bytes.encode_batch

    def encode_slowly(self: Bytes, texts: list[str]) -> list[list[int]]:
        time.sleep(BATCH_SECONDS)
        return encode(self, texts)

    def refuse_lock(*_: object) -> None:
        raise OSError("no locks")

    with (
        mock.patch.object(source, "PART_BYTES", 1),
        mock.patch.object(documents, "BATCH_CHARACTERS", BATCH_CHARACTERS),
        mock.patch.object(Bytes, "encode_batch", encode_slowly),
        mock.patch.object(fcntl, "flock", fcntl.flock if locks else refuse_lock),
    ):
        if hash_of(open_text(folder, cache)) != due:
            raise SystemExit("another text")


def count_parts(cache: Path) -> int:
    """Counts the parts of texts that are being tokenized."""
    return len(list(cache.glob("store-*.part-*/complete.json")))


def change(folder: Path, draw: random.Random, lines: int) -> None:
    """Appends lines to a file."""
    with open(folder / f"{draw.randrange(FILES)}.txt", "a") as file:
        file.writelines(f"{draw.random()}\n" for _ in range(lines))


def hunt(root: Path, *, turns: int, processes: int = 2, locks: bool = True, seed: int = 0) -> int:
    """Brings faults on builders in `root`; returns how many died of SIGKILL.

    Raises:
      AssertionError: a process that was not killed has failed.
    """
    draw = random.Random(seed)
    folder = root / "text"
    folder.mkdir(parents=True)
    for number in range(FILES):
        lines = [f"file {number}, line {line}: {draw.random()}\n" for line in range(LINES)]
        (folder / f"{number}.txt").write_text("".join(lines))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["flaxformer_lite.data.documents"])
    cache = root / "cache"
    killed = 0
    for turn in range(turns):
        due = hash_of(open_text(folder, root / f"alone-{turn}"))
        started: list[BaseProcess] = []
        for _ in range(processes):
            arguments = (folder, cache, due)
            started.append(context.Process(target=build, args=arguments, kwargs={"locks": locks}))
            started[-1].start()
        parts = draw.randrange(FILES + 1)  # that are there when a process is killed
        while count_parts(cache) < parts and any(map(BaseProcess.is_alive, started)):
            time.sleep(0.001)
        time.sleep(draw.uniform(0, PART_SECONDS))
        victims = started if turn % 3 else draw.sample(started, 1)
        if turn == turns - 1:
            victims = []
        for process in victims:
            process.kill()
        for process in started:
            process.join(MAX_SECONDS)
            fine = (0, -9) if process in victims else (0,)
            assert process.exitcode in fine, f"turn {turn}: a process ended with {process.exitcode}"
            killed += process.exitcode == -9
        if turn % 3 != 1 and turn < turns - 1:  # else the next goes on where this one was killed
            change(folder, draw, LINES // 10)
    store = open_text(folder, cache).tokens["train"].store
    assert store.folder is not None, "in the cache"
    left = [path.name for path in cache.iterdir() if f"{store.folder.name}.part-" in path.name]
    if not locks:  # it is not known which of these are still being written
        left = [path for path in left if not path.startswith(".")]
    assert not left, left
    return killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--no-locks", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        killed = hunt(
            Path(folder),
            turns=options.turns,
            processes=options.processes,
            locks=not options.no_locks,
            seed=random.randrange(1 << 30),
        )
    print(f"{options.turns} turns, {killed} processes killed, no other fault")


if __name__ == "__main__":
    main()
