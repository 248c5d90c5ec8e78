"""Metrics: averaged over an interval, then written to metrics.jsonl and TensorBoard."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorboardX

Record = dict[str, Any]
LATEST = ("learning_rate", "param_norm")  # as they are at the end of the interval; all else is its mean


class Meter:
    """Averages of the steps since the last record, their speed, and the share of the time that data was waited for.

    Args:
      tokens_per_step: input tokens, padding included.
      flops_per_step: of analysis/flops.py.
      peak: FLOP/s of all devices together, or None where unknown: no `mfu` then.
    """

    def __init__(self, tokens_per_step: int, flops_per_step: int, peak: float | None):
        self._tokens, self._flops, self._peak = tokens_per_step, flops_per_step, peak
        self._steps: list[dict[str, float]] = []
        self._timed = 0
        self._waited = 0.0
        self._since: float | None = None

    def waiting(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches, and how long each was waited for."""
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            if self._since is not None:
                self._waited += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    def add(self, metrics: dict[str, float]) -> None:
        """Takes in one finished step. The first step, which waits for the compiler, only starts the clock."""
        self._steps.append(metrics)
        if self._since is None:
            self._since = time.perf_counter()
        else:
            self._timed += 1

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Time in the block (evaluation, checkpoints) is not training time."""
        began = time.perf_counter()
        yield
        if self._since is not None:
            self._since += time.perf_counter() - began

    def record(self, step: int) -> Record:
        """What `metrics.jsonl` says of the steps since the last call."""
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
    """The run's history: one JSON object a line in metrics.jsonl, and the same in TensorBoard.

    Args:
      workdir: of the run.
      last_step: records of later steps, left by a run that was killed, are dropped; -1 drops all.
      writes: False on all processes but one, whose history is what they add themselves.

    Attributes:
      history: every record of the run so far, in order.
    """

    def __init__(self, workdir: Path, last_step: int, *, writes: bool = True):
        self._path, self._board = workdir / "metrics.jsonl", None
        self.history: list[Record] = []
        if not writes:
            return
        self.history = [record for record in read(self._path) if record["step"] <= last_step]
        rewound = self._path.with_suffix(".tmp")
        rewound.write_text("".join(_line(record) for record in self.history), encoding="utf-8")
        rewound.replace(self._path)
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

    def of(self, split: str) -> list[Record]:
        """Records of "train" or "eval"."""
        return [record for record in self.history if record["split"] == split]

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _line(record: Record) -> str:
    return json.dumps(record) + "\n"


def read(path: Path) -> list[Record]:
    """The records of a metrics.jsonl; a last line that was cut off by a kill is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    return records
