"""The best evaluation of a run by `train.best`.

Its weights are kept in best/, and `train.patience` counts from it.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from flaxformer_lite import registry
from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.config import ConfigError, ExperimentConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import Metric
from flaxformer_lite.types import Params


class Best(NamedTuple):
    """The best evaluation so far; the record of each checkpoint holds the one of its step."""

    step: int = 0  # 0: none yet
    value: float = 0.0
    waited: int = 0  # evaluations since


class Selection:
    """Keeps the weights of the best evaluation, and stops a run that no longer improves.

    Evaluations before the first step do not count, and an equal value is no better.

    Args:
      checkpoints: of the best weights; None without `train.best`, when nothing is kept.
      best: the best evaluation up to the step from which the run continues.
    """

    def __init__(self, cfg: ExperimentConfig, checkpoints: Checkpoints | None, best: Best):
        self._train = cfg.train
        self._checkpoints = checkpoints
        self.best = best
        shown = {metric.name: metric for metric in cfg.objective.shown}
        self.metric = shown.get(cfg.train.best, Metric(cfg.train.best))

    def check(self, values: Mapping[str, float]) -> None:
        """Refuses a metric that evaluations do not have.

        Raises:
          ConfigError: names those that they have.
        """
        if self._checkpoints and self.metric.name not in values:
            near = registry.did_you_mean(self.metric.name, list(values))
            known = ", ".join(values)
            raise ConfigError(
                f"train.best={self.metric.name!r}: no such metric{near}; evaluations have {known}."
            )

    def after(self, step: int, values: Mapping[str, float]) -> bool:
        """Takes the evaluation after a step into account; returns whether it is the best."""
        if not self._checkpoints:
            return False
        value = values[self.metric.name]
        best = self.best
        # A NaN would never be beaten, as all comparisons with it are false.
        is_first = not best.step and not math.isnan(value)
        is_best = is_first or self.metric.is_better(value, best.value)
        if is_best:
            self.best = Best(step, value)
        else:
            self.best = best._replace(waited=best.waited + 1)
        return is_best

    def save(self, step: int, params: Params, meta: Json) -> None:
        """Saves the best weights in the background.

        A run that was killed between this and its next checkpoint repeats the step; the weights
        are kept.
        """
        if self._checkpoints and self._checkpoints.latest_step != step:
            self._checkpoints.save(step, {"params": params}, meta)

    def wait(self) -> None:
        """Waits until the best weights are on disk, before a checkpoint refers to them."""
        if self._checkpoints:
            self._checkpoints.wait()

    @property
    def stalled(self) -> bool:
        """Whether `train.patience` is used up."""
        return 0 < self._train.patience <= self.best.waited

    @property
    def words(self) -> str:
        """A description of the best evaluation, or an empty string if there is none."""
        if not self.best.step:
            return ""
        stopped = f", and {self.stopped}" if self.stopped else ""
        return (
            f"{self.metric.words} {self.metric.show(self.best.value)} after {self.best.step}"
            f" steps{stopped}"
        )

    @property
    def stopped(self) -> str:
        """Why the run ends before its last step, or an empty string if it does not."""
        if not self.stalled:
            return ""
        return f"no better in {self.best.waited} evaluations since (train.patience)"
