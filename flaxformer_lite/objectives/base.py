"""The protocol of an objective: its examples, loss, metrics and baseline. The trainer knows no objective by name.

A class of your own, in any module, trains as the ones beside this file do:

    @dataclass(frozen=True, kw_only=True)
    class Mine(Objective):
        temperature: float = 1.0  # --config.objective.temperature=0.5

        def make_example(self, records, index, rng): ...
        def loss(self, outputs, targets, *, chunks): ...

    python train.py --config=... --config.objective.name=my_module:Mine
"""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.objectives.packing import Packing, beginnings
from flaxformer_lite.objectives.sums import LossSums, ratio

SKELETONS = ("encoder", "decoder", "encoder_decoder")


class Metric(NamedTuple):
    """A number in the records of metrics.jsonl, and how it is shown to people."""

    name: str  # its key in the records
    label: str = ""  # in words; empty: the name
    form: str = ".3f"  # of the number, as `format` takes it
    unit: str = ""
    higher_is_better: bool = False
    live: bool = False  # also shown at each evaluation, as the headline always is

    @property
    def words(self) -> str:
        return self.label or self.name.replace("_", " ")

    def show(self, value: float) -> str:
        return f"{value:{self.form}}"


LOSS = Metric("loss")


@dataclass(frozen=True, kw_only=True)
class Objective(abc.ABC):
    """Base of every objective: a frozen dataclass whose fields are its options.

    Attributes:
      skeletons: the kinds of models that it trains.
      head: what they carry (`head_for` where it depends on the kind); empty: any.
      fields: texts that it reads of a document; keys of a jsonl line where it is more than plain text.
      numbers: keys of a jsonl line that hold numbers, such as labels; they travel with the document (`Records.number`).
      needs: attributes of the tokenizer that must be there, such as `cls_id`.
      shown: metrics that a run reports in words; the first is its headline, which is also drawn.
    """

    skeletons: ClassVar[tuple[str, ...]] = SKELETONS
    head: ClassVar[str] = ""
    fields: ClassVar[tuple[str, ...]] = ("text",)
    numbers: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[Metric, ...]] = (LOSS,)

    @property
    def headline(self) -> Metric:
        return self.shown[0]

    def head_for(self, skeleton: str) -> str:
        """The head that a model of this kind must have."""
        return self.head

    def check(self, model: ModelConfig, records: Any) -> None:
        """Refuses data that do not fit the model, such as labels that it has no logits for.

        Raises:
          ConfigError: the field, the rule and the way out.
        """
        return

    def lengths(self, length: int, target_length: int) -> tuple[int, int]:
        """Tokens of an example, and of its decoder's side or 0, for data.length and data.target_length."""
        return length, 0

    def pack(self, offsets: np.ndarray, length: int, target_length: int, tokenizer: Any) -> Packing:
        """Which pieces of which documents form a row: by default each document has a row, and loses its end beyond `length`.

        Args:
          offsets: [documents + 1] int64, where each begins among the tokens, and the end of the last.
          length, target_length: of `lengths`.
          tokenizer: knows the special ids.
        """
        return beginnings(offsets, length)

    @abc.abstractmethod
    def make_example(self, records: Any, index: int, rng: np.random.Generator) -> dict:
        """The example of a row: {"inputs": what `outputs` reads, "targets": what `loss` reads}, numpy arrays.

        Floating arrays among the targets are weights, each the name of a term of the loss: 0 where an example is padding.
        """

    def outputs(self, model: Any, inputs: Mapping[str, jax.Array]) -> Any:
        """What `loss` takes of the model, by default its hidden states with the weights that make logits of them.

        Args:
          model: the linen module, bound to its parameters.
          inputs: of a batch.
        """
        return model.features(**inputs)

    @abc.abstractmethod
    def loss(self, outputs: Any, targets: Mapping[str, jax.Array], *, chunks: int) -> LossSums:
        """The loss and the metrics of a batch, or a part of one, as sums with their weights."""

    def metrics(self, sums: LossSums) -> dict[str, jax.Array]:
        """Scalars of added-up sums, jax arrays while training: the loss, and the mean of each of their metrics."""
        return {"loss": sums.mean(), **{name: ratio(total, weight) for name, (total, weight) in sums.metrics.items()}}

    def held_out_metrics(self, metrics: dict[str, float], data: Any) -> dict[str, float]:
        """The metrics of held-out examples, with those that need to know the data (a Dataset)."""
        return metrics

    def baseline(self, data: Any) -> tuple[str, float] | None:
        """What the headline would be without a model: a name and a number, or None."""
        return None

    def transient_logits(self, batch: Any, model: ModelConfig, rows: int, accumulate: int, chunks: int) -> int:
        """Numbers among the logits that exist at once on one chip, for plans of memory; 0 where they are few.

        Args:
          batch: shapes of a whole one.
          model: its sizes.
          rows: of a microbatch on one chip.
          accumulate: microbatches of a batch.
          chunks: train.loss_chunks.
        """
        return 0
