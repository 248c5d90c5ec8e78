"""Averages of a step's metrics and of its time, over an interval."""

import collections
import math
import types
from collections.abc import Iterable, Mapping, Sequence

from flaxformer_lite.objectives.sums import BY_SOURCE
from flaxformer_lite.runs.report.clock import Clock, goodput, merge_parts, seconds_in_steps
from flaxformer_lite.runs.report.metrics import LATEST, SECONDS, Record


class Meter:
    """Averages metrics over the steps since the last record, and measures their speed.

    Args:
      tokens_per_step: input tokens, padding included.
      peak: FLOP/s of all devices together; None if unknown: then `mfu` is not recorded.
      earlier: seconds by part of this run's earlier starts.
      window: metrics of the steps between the last record and the checkpoint that this start
        continues from.
    """

    def __init__(
        self,
        tokens_per_step: int,
        flops_per_step: int,
        peak: float | None,
        clock: Clock | None = None,
        earlier: Mapping[str, float] = types.MappingProxyType({}),
        window: Iterable[dict[str, float]] = (),
    ):
        self._tokens = tokens_per_step
        self._flops = flops_per_step
        self._peak = peak
        self._steps = list(window)
        self._timed = 0
        self.clock = clock or Clock()
        self.clock.seconds.update(earlier)
        self._recorded = collections.Counter(earlier)  # seconds by part in the records so far
        # seconds by part at the beginning of the interval
        self._since: collections.Counter[str] | None = None

    def add(self, metrics: Mapping[str, float], *, timed: bool) -> None:
        """Adds a finished step; one that is not timed, as the first, starts the interval."""
        self._steps.append(dict(metrics))
        if timed:
            self._timed += 1
        else:
            self._since = self.clock.read()

    @property
    def window(self) -> list[dict[str, float]]:
        """The metrics of the steps since the last record, which a checkpoint keeps."""
        return self._steps

    @property
    def is_empty(self) -> bool:
        """Whether all updates since the last record were skipped: nothing is left to average."""
        return all(metrics.get("skipped") for metrics in self._steps)

    def record(self, step: int) -> Record:
        """Returns the record of the steps since the last call, for `metrics.jsonl`."""
        now = self.clock.read()
        out: Record = {"step": step, "split": "train", **average_metrics(self._steps)}
        if self._timed and self._since is not None:
            took = seconds_in_steps(now) - seconds_in_steps(self._since)
            seconds = took / self._timed
            out |= {"step_seconds": seconds, "tokens_per_second": self._tokens / seconds}
            out["data_wait"] = (now["data"] - self._since["data"]) / took
            if self._peak:
                out["mfu"] = self._flops / seconds / self._peak
        out |= {
            f"{SECONDS}{part}": took for part, took in merge_parts(now - self._recorded).items()
        }
        out["goodput"] = goodput(now)
        self._steps = []
        self._timed = 0
        self._since = now
        self._recorded = now
        return out


def average_metrics(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Averages the metrics of consecutive steps; skipped updates count in `skipped` only."""
    taken = [step for step in steps if not step.get("skipped")] or steps
    averages = {}
    for name in steps[-1]:
        values = [step[name] for step in taken]
        if name.startswith(BY_SOURCE):  # NaN where a source had no row
            values = [value for value in values if not math.isnan(value)]
        if values:
            averages[name] = sum(values) / len(values)
    if "skipped" in averages:
        averages["skipped"] = sum(step["skipped"] for step in steps) / len(steps)
    for name in LATEST:
        if name in averages:
            averages[name] = steps[-1][name]
    return averages
