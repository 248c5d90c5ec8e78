"""The base class of objectives whose batches are completed by the model before each step."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import Objective, StepTools
from flaxformer_lite.objectives.rows import Rows


class Drawn(NamedTuple):
    """A continuation that a model has drawn.

    Attributes:
      ids: int32 [n], its tokens, with the stop token if it has one.
      log_probs: float32 [n], their log-probabilities under the model as it drew them.
    """

    ids: np.ndarray
    log_probs: np.ndarray


class CurrentPolicy(Protocol):
    """The model with the weights before a step."""

    @property
    def dtype(self) -> str:
        """The dtype of its computations."""
        ...

    def draw(
        self,
        prompts: Sequence[np.ndarray],
        *,
        samples: int,
        width: int,
        max_new_tokens: int,
        temperature: float,
        eos_token_id: tuple[int, ...],
    ) -> list[Drawn]:
        """Draws `samples` continuations of each prompt, which are neighbors."""
        ...

    def predict(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns `Objective.predictions` for the batch with these inputs, without dropout."""
        ...

    def share(self, compute: Callable[[range], np.ndarray], prompts: int) -> np.ndarray:
        """Computes float32 rows for prompts, each process for its own, and joins them.

        Args:
          compute: returns the rows of a range of prompts, which is not empty.
          prompts: their number in all.

        Raises:
          ConfigError: a process raised it; all processes raise the same.
        """
        ...


class Collected(NamedTuple):
    """The additions of an objective to a batch before its step.

    Attributes:
      batch: "inputs" and "targets", arrays [B, ...] by name, in place of those of `make_example`.
      metrics: numbers for the record of the step.
      record: what the workdir keeps of the step, as JSON; with the keys "written", and "rewards" by
        their names, which must be the same for the same "written" if the step is run again.
      details: what is added to the record where `steps --run` shows the step, too large to be kept.
    """

    batch: dict[str, dict[str, np.ndarray]]
    metrics: dict[str, float]
    record: Json
    details: Json


@dataclass(frozen=True, kw_only=True)
class RolloutObjective(Objective):
    """Base class of objectives whose batches are completed by `collect` before each step.

    Their examples have the inputs `example`, the number of the example, and `update`, that of the
    update of its batch, from 0; [] int32.
    """

    def make_stepper(self, experiment: Any, tools: StepTools) -> Callable | None:
        # Imported when a run begins, as it needs the trainer's code, and a config does not.
        from flaxformer_lite.contrib.rl.rollout_stepper import RolloutStepper

        return RolloutStepper(experiment, self, tools)

    @abc.abstractmethod
    def collect(self, policy: CurrentPolicy, records: Rows, examples: np.ndarray) -> Collected:
        """Completes a batch of training before its step.

        Args:
          policy: the model with the weights that the step begins with.
          records: the training records.
          examples: [B] int, the numbers of the batch's examples.

        Raises:
          ConfigError: the batch cannot be completed, which ends the run with the message.
        """

    @abc.abstractmethod
    def rehearse(self, records: Rows) -> None:
        """Tries what `collect` calls on an example, before the first step.

        Raises:
          ConfigError: it cannot work.
        """

    @abc.abstractmethod
    def check_first_update(self, metrics: Mapping[str, float], dtype: str) -> None:
        """Checks the metrics of the first update of a completed batch.

        Args:
          metrics: the metrics of the update, and those of `collect`.
          dtype: of the model's computations.

        Raises:
          ConfigError: they cannot be right, which ends the run with the message.
        """

    @abc.abstractmethod
    def show_collected(self, record: Json, row: int) -> list[str]:
        """Returns lines that show a row of the record of a completed batch.

        Args:
          record: with `details` if the step has been run again.
          row: the number of the row in the batch.
        """
