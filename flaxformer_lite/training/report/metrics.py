"""Metrics, averaged over an interval and written to metrics.jsonl and TensorBoard."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorboardX

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.files.read import is_kind, parse_object, read_bytes

LARGEST = 1 << 30  # bytes of metrics.jsonl
Record = dict[str, Any]
LATEST = ("learning_rate", "param_norm")  # reported as of the end of the interval; all others as the mean


class Meter:
    """Averages over the steps since the last record, their speed, and the share of time spent waiting for data.

    Args:
      tokens_per_step: input tokens, padding included.
      flops_per_step: from analysis/flops.py.
      peak: FLOP/s of all devices together; None if unknown, which leaves out `mfu`.
    """

    def __init__(self, tokens_per_step: int, flops_per_step: int, peak: float | None):
        self._tokens, self._flops, self._peak = tokens_per_step, flops_per_step, peak
        self._steps: list[dict[str, float]] = []
        self._timed = 0
        self._waited = 0.0
        self._since: float | None = None  # the beginning of the interval, moved on by pauses
        self._ended: float | None = None  # the end of the last step, likewise

    def waiting(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the batches, measuring how long each was waited for."""
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            if self._since is not None:
                self._waited += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    def add(self, metrics: dict[str, float]) -> float | None:
        """Adds one finished step. The first, which waits for the compiler, only starts the clock.

        Returns:
          The seconds since the step before, without pauses; None for the first.
        """
        now, before = time.perf_counter(), self._ended
        self._steps.append(metrics)
        self._ended = now
        if before is None:
            self._since = now
            return None
        self._timed += 1
        return now - before

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Excludes the time in the block (evaluation, checkpoints) from training time."""
        began = time.perf_counter()
        yield
        if self._since is not None and self._ended is not None:
            paused = time.perf_counter() - began
            self._since, self._ended = self._since + paused, self._ended + paused

    def record(self, step: int) -> Record:
        """Returns the record of the steps since the last call, for `metrics.jsonl`."""
        now, steps = time.perf_counter(), self._steps
        out: Record = {"step": step, "split": "train"}
        for name in steps[-1]:
            out[name] = steps[-1][name] if name in LATEST else sum(s[name] for s in steps) / len(steps)
        if self._timed and self._since is not None:
            seconds = (now - self._since) / self._timed
            out |= {"step_seconds": seconds, "tokens_per_second": self._tokens / seconds}
            out["data_wait"] = self._waited / (now - self._since)
            if self._peak:
                out["mfu"] = self._flops / seconds / self._peak
        self._steps, self._timed, self._waited, self._since = [], 0, 0.0, now
        return out


class Recorder:
    """The run's history: one JSON object per line in metrics.jsonl, and the same in TensorBoard; texts in samples.jsonl.

    Args:
      workdir: the run's workdir.
      last_step: records of later steps, left by a killed run, are dropped; -1 drops all.
      writes: False on all processes but one; their history is then only what they add themselves.

    Attributes:
      history: every record of the run so far, in order.
      samples: what the model wrote at evaluations, as {"step": 20, "texts": [[title, text], ...]}.
      notices: one about lines of the file that could not be read.
    """

    def __init__(self, workdir: Path, last_step: int, *, writes: bool = True):
        self._path, self._texts, self._board = workdir / "metrics.jsonl", workdir / "samples.jsonl", None
        self.history: list[Record] = []
        self.samples: list[Record] = []
        self.notices: list[str] = []
        if not writes:
            return
        records, damaged = _read(self._path, _record)
        if damaged:
            lines = ", ".join(map(str, damaged[:5])) + (f" and {len(damaged) - 5} more" if len(damaged) > 5 else "")
            self.notices.append(f"{self._path}: no record of a step can be read from line {lines}; dropped.")
        self.history = [record for record in records if record["step"] <= last_step]
        write_file(self._path, "".join(_line(record) for record in self.history).encode())
        self.samples = [sample for sample in _read(self._texts, _sample)[0] if sample["step"] <= last_step]
        if self._texts.exists():
            write_file(self._texts, "".join(_line(sample) for sample in self.samples).encode())
        self._board = tensorboardX.SummaryWriter(str(workdir / "tensorboard"), purge_step=last_step + 1)

    def add(self, record: Record) -> None:
        self.history.append(record)
        if self._board is None:
            return
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(_line(record))
        for name, value in record.items():
            if name not in ("step", "split"):
                self._board.add_scalar(f"{record['split']}/{name}", value, record["step"])

    def add_sample(self, step: int, texts: list[tuple[str, str]]) -> None:
        """Records texts of an evaluation, each with a title."""
        self.samples.append({"step": step, "texts": texts})
        if self._board is not None:
            with open(self._texts, "a", encoding="utf-8") as file:
                file.write(_line(self.samples[-1]))

    def of(self, split: str) -> list[Record]:
        """Returns the records of "train" or "eval"."""
        return [record for record in self.history if record["split"] == split]

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def middles(records: list[Record]) -> list[float]:
    """Returns the middle of each training record's steps, as it is their mean."""
    starts = [0, *(record["step"] for record in records)]
    return [(start + record["step"] + 1) / 2 for start, record in zip(starts, records, strict=False)]


def _line(record: Record) -> str:
    return json.dumps(record) + "\n"


def read(path: Path) -> list[Record]:
    """Reads the records of a metrics.jsonl, without lines that a kill has cut off or that are damaged."""
    return _read(path, _record)[0]


def _read(path: Path, parse: Callable[[bytes], Record]) -> tuple[list[Record], list[int]]:
    """Returns the records, and the numbers of the damaged lines."""
    records, damaged = [], []
    lines = read_bytes(path, limit=LARGEST).split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            records.append(parse(line))
        except ConfigError:
            damaged += [number] if number < len(lines) else []  # a kill leaves a last line without an end
    return records, damaged


def _record(line: bytes) -> Record:
    record = parse_object(line, "metrics.jsonl")
    numbers = [value for name, value in record.items() if name != "split"]
    if not (is_kind(record.get("step"), int) and is_kind(record.get("split"), str)):
        raise ConfigError("metrics.jsonl: not a record of a step")
    if not all(isinstance(value, (int, float)) for value in numbers):
        raise ConfigError("metrics.jsonl: holds a value that is no number")
    return record


def _sample(line: bytes) -> Record:
    sample = parse_object(line, "samples.jsonl")
    pairs = sample.get("texts")
    if not (is_kind(sample.get("step"), int) and isinstance(pairs, list)):
        raise ConfigError("samples.jsonl: not a sample of a step")
    if not all(isinstance(pair, list) and [type(part) for part in pair] == [str, str] for pair in pairs):
        raise ConfigError("samples.jsonl: texts must be pairs of a title and a text")
    return sample
