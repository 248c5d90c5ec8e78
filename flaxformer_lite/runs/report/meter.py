"""Averages of a step's metrics and of its time, over an interval."""

import collections
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flaxformer_lite.objectives.sums import BY_SOURCE
from flaxformer_lite.runs.report.clock import STEPPING, Clock, goodput, parts
from flaxformer_lite.runs.report.metrics import LATEST, SECONDS, Record


class Meter:
    """Averages over the steps since the last record, their speed, and the share of time spent
    waiting for data.

    Args:
      tokens_per_step: input tokens, padding included.
      peak: FLOP/s of all devices together; None if unknown, which leaves out `mfu`.
      earlier: seconds by part of this run's earlier starts.
    """

    def __init__(
        self,
        tokens_per_step: int,
        flops_per_step: int,
        peak: float | None,
        clock: Clock | None = None,
        earlier: Mapping[str, float] = types.MappingProxyType({}),
    ):
        self._tokens = tokens_per_step
        self._flops = flops_per_step
        self._peak = peak
        self._steps: list[dict[str, float]] = []
        self._timed = 0
        self.clock = clock or Clock()
        self.clock.seconds.update(earlier)
        self._recorded = collections.Counter(earlier)  # seconds by part in the records so far
        # those at the beginning of the interval
        self._since: collections.Counter[str] | None = None
        self._ended: float | None = None  # those of all steps, at the end of the last

    def waiting(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the batches, measuring how long each was waited for."""
        while True:
            with self.clock.during("data"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def add(self, metrics: dict[str, float]) -> float | None:
        """Adds one finished step. The first, which waits for the compiler, only starts the clock.

        Returns:
          The seconds since the step before, without evaluations and the like; None for the first.
        """
        now = self.clock.read()
        before = self._ended
        self._steps.append(metrics)
        self._ended = _stepping(now)
        if before is None:
            self._since = now
            return None
        self._timed += 1
        return self._ended - before

    @property
    def is_empty(self) -> bool:
        """Whether all updates since the last record were left out, so that there is nothing to
        average."""
        return all(metrics.get("skipped") for metrics in self._steps)

    def record(self, step: int) -> Record:
        """Returns the record of the steps since the last call, for `metrics.jsonl`."""
        now = self.clock.read()
        out: Record = {"step": step, "split": "train", **means(self._steps)}
        if self._timed and self._since is not None:
            took = _stepping(now) - _stepping(self._since)
            seconds = took / self._timed
            out |= {"step_seconds": seconds, "tokens_per_second": self._tokens / seconds}
            out["data_wait"] = (now["data"] - self._since["data"]) / took
            if self._peak:
                out["mfu"] = self._flops / seconds / self._peak
        out |= {f"{SECONDS}{part}": took for part, took in parts(now - self._recorded).items()}
        out["goodput"] = goodput(now)
        self._steps = []
        self._timed = 0
        self._since = now
        self._recorded = now
        return out


def means(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Averages the metrics of neighboring steps; of a step whose update was skipped, only that
    counts."""
    taken = [step for step in steps if not step.get("skipped")] or steps
    of = {name: [step[name] for step in taken] for name in steps[-1]}
    of = {
        name: [x for x in of[name] if not (name.startswith(BY_SOURCE) and math.isnan(x))]
        for name in of
    }
    # a source may have had no row
    values = {name: sum(known) / len(known) for name, known in of.items() if known}
    if "skipped" in values:
        values["skipped"] = sum(step["skipped"] for step in steps) / len(steps)
    return values | {name: steps[-1][name] for name in LATEST if name in values}


def _stepping(seconds: collections.Counter[str]) -> float:
    return sum(seconds[part] for part in STEPPING)
