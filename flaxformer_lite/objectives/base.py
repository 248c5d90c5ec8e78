"""The base class of objectives: examples, loss, metrics and baseline.

The trainer knows no objective by name. Your own class, in any module, trains in the same way as
those in this folder:

    @dataclass(frozen=True, kw_only=True)
    class Mine(Objective):
        z_loss: float = 0.0  # --config.objective.z_loss=1e-4
        label_smoothing: float = 0.0

        def make_example(self, records, index, rng):
            (ids,) = row_ids(records, index)
            return {"inputs": {"input_ids": ...}, "targets": {"labels": ..., "weights": ...}}

        def loss(self, outputs, targets, *, chunks):
            return token_loss(self, outputs, targets, chunks)  # in objectives/sums.py

    flaxformer_lite train --config=... --config.objective.name=my_module:Mine
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ModelConfig, Record
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.auxiliary_model import AuxiliaryModel
from flaxformer_lite.objectives.row_plans import RowPlan, take_beginnings
from flaxformer_lite.objectives.rows import Example, Tokenizer
from flaxformer_lite.objectives.sums import LossSums
from flaxformer_lite.objectives.tables.breakdown import Breakdown
from flaxformer_lite.types import Arrays, Predictions

SKELETONS = ("encoder", "decoder", "encoder_decoder")


Baseline = tuple[str, float]  # the name of a trivial baseline, and its headline value


class Dataset(Protocol):
    """The examples of a split, and of both splits (data/dataset.py)."""

    def __hash__(self) -> int: ...

    @property
    def records(self) -> Any: ...

    @property
    def splits(self) -> Mapping[str, Any]: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_examples(self) -> int: ...

    @property
    def order(self) -> np.ndarray: ...

    def sample_targets(self, split: str) -> Iterator[dict[str, np.ndarray]]: ...


class Writer(Protocol):
    """Continues prompts, each with the ids that it returns (inference/writer.py)."""

    def __call__(
        self,
        prompts: Sequence[np.ndarray],
        *,
        width: int,
        max_new_tokens: int,
        num_beams: int,
        eos_token_id: int | tuple[int, ...],
    ) -> list[list[int]]: ...


@runtime_checkable
class WritesText(Protocol):
    """Protocol of objectives that are judged by the text that the model writes.

    Attributes:
      written_rows: number of held-out examples for which each evaluation calls `write`.
    """

    @property
    def written_rows(self) -> int: ...

    def write(self, write: Writer, records: Any, examples: np.ndarray) -> dict[str, np.ndarray]:
        """Generates text for examples.

        Args:
          write: `write(prompts, width=, max_new_tokens=, **settings)` returns the generated ids of
            each prompt; see inference/writer.py.
          records: the records of the examples.
          examples: [N] int, the numbers of the examples.

        Returns:
          Arrays [N, ...] by name, which `scores` and `decode` get like `predictions`.
        """
        ...

    def show_written(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> list[tuple[str, str]]:
        """Returns pairs of a title and a text that show what `write` returned.

        Args:
          predictions, examples, data: as in `Objective.scores`.
        """
        ...


class StepTools(NamedTuple):
    """The tools that a run gives to the step of an objective.

    Attributes:
      save_record: keeps a record of a step, as JSON with its "step"; lines for each of its rows,
        under "shown", are printed by `steps`.
      load_record: returns the record of a step that the run has taken before, or {}.
      show_notice: shows a line.
      time_section: returns the context of a part of the time (runs/report/clock.py).
      share_values: gives a JSON value to all processes; returns the values of all, in their order.
    """

    save_record: Callable[[Json], None] = lambda record: None
    load_record: Callable[[int], Json] = lambda step: {}
    show_notice: Callable[[str], None] = lambda line: None
    time_section: Callable[[str], contextlib.AbstractContextManager] = contextlib.nullcontext
    share_values: Callable[[Json], list[Json]] = lambda value: [value]


class Metric(NamedTuple):
    """A number in the records of metrics.jsonl, and how to display it."""

    name: str  # its key in the records
    label: str = ""  # its name for readers; by default `name` with spaces
    form: str = ".3f"  # format specification of the value
    unit: str = ""
    higher_is_better: bool = False
    live: bool = False  # whether each evaluation prints it, as it prints the headline
    in_training: bool = False  # whether the records of training print it, too

    @property
    def words(self) -> str:
        return self.label or self.name.replace("_", " ")

    def show(self, value: float) -> str:
        return f"{value:{self.form}}"

    def is_better(self, value: float, other: float) -> bool:
        """Compares two values; one that is not a number is never better."""
        if self.higher_is_better:
            return value > other
        return value < other


def score_metric(name: str, label: str = "", form: str = ".3f", live: bool = False) -> Metric:
    """Returns a metric whose higher values are better."""
    return Metric(name, label, form=form, higher_is_better=True, live=live)


ACCURACY = score_metric("accuracy", form=".1%", live=True)
LOSS = Metric("loss")


@dataclass(frozen=True, kw_only=True)
class Objective(Record, abc.ABC):
    """Base class of objectives: a frozen dataclass whose fields are its options.

    Only annotated attributes are fields; a subclass sets this class's without an annotation.

    Attributes:
      skeletons: the skeletons that it can train.
      head: the head that the model must have, or that of each skeleton; "" for any.
      columns: what it reads: the texts of a document, which are keys of a jsonl line unless the
        text is plain, or the columns of a table (`Task`).
      needs: attributes that the tokenizer must have, such as `cls_id`.
      shown: metrics that a run prints; the first one is the headline, which is also plotted.
      reference: name of the prediction of the initial weights that is kept with each example
        (`Rows.reference`); "" for none.
      num_plans: number of different plans of a text, which epochs use in turn; 1 if all epochs
        have the same rows.
      new_head: whether a directory of `train.init_from` may lack the head, which is then
        initialized at random.
      adopts: fields that are filled in if the config leaves them empty: `template` (the chat
        template) and `pooling` (of sentence vectors) from the directory of `train.init_from`,
        `labels` from the data. The workdir keeps their values for runs that continue.
    """

    skeletons: ClassVar[tuple[str, ...]] = SKELETONS
    head: ClassVar[str | Mapping[str, str]] = ""
    columns: ClassVar[tuple[Any, ...]] = ("text",)
    needs: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[Metric, ...]] = (LOSS,)
    reference: ClassVar[str] = ""
    num_plans: ClassVar[int] = 1
    new_head: ClassVar[bool] = False
    adopts: ClassVar[tuple[str, ...]] = ()

    @property
    def updates_per_step(self) -> int:
        """The number of updates that a step makes of its batch."""
        return 1

    def auxiliary_model(self, model: ModelConfig) -> AuxiliaryModel | None:
        """Returns the second model that `outputs` receives, or None."""
        return None

    def adopt(self, facts: Mapping[str, object]) -> Self:
        """Returns the objective with its empty fields in `adopts` filled in.

        Args:
          facts: values by field, from a directory of weights or from an earlier run; other fields
            are ignored.
        """
        values = {name: facts[name] for name in self.adopts if facts.get(name)}
        empty = {name: value for name, value in values.items() if not getattr(self, name)}
        return dataclasses.replace(self, **empty)

    @classmethod
    def of_published(cls, published: Json, labels: tuple[str, ...]) -> Self:
        """Returns the objective that a published model was trained for.

        Args:
          published: the model's config.json, with its `head`, with the `pooling` of a sentence
            model and its `prompts` of a query and a document, and the `activation` of a score.
          labels: the names of its classes.
        """
        return cls()

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        """Returns the model's config with fields that follow from the objective or its data.

        Such as the number of classes.
        """
        return model

    def lengths(self, length: int, target_length: int) -> tuple[int, int]:
        """Returns the number of tokens of an example, and of its decoder side, or 0.

        Args:
          length: data.length.
          target_length: data.target_length.
        """
        return length, 0

    def plan_rows(
        self,
        offsets: Mapping[str, np.ndarray],
        length: int,
        target_length: int,
        tokenizer: Tokenizer,
    ) -> RowPlan:
        """Plans which pieces of documents form each row.

        By default each document is a row, cut at `length`. A large text is planned in several
        calls, each for a range of its documents. If `num_plans` is not 1, the method is also called
        with `shift`, a float in [0, 1) that differs between plans, and is 0 for held-out text and
        the first epoch.

        Args:
          offsets: by the column of the tokens, which is `ids`, or `source` and `target` of pairs:
            int64 [documents + 1], the start of each document in the tokens of the range, and the
            end of the last document.
          length, target_length: the results of `lengths`.
          tokenizer: has the special ids.

        Returns:
          The pieces, and the rows that they form.
        """
        return take_beginnings(offsets["ids"], length)

    @abc.abstractmethod
    def make_example(self, records: Any, index: int, rng: np.random.Generator) -> Example:
        """Builds the example of a row.

        Args:
          records: the records, with `pieces(index)`, `tokenizer` and `length`.
          index: the number of the row.
          rng: the random numbers of this row in this epoch.

        Returns:
          {"inputs": arrays for `outputs`, "targets": arrays for `loss`}, numpy arrays without a
          batch axis. Each floating array of the targets is the weight of a term of the loss, is
          named after the term, and is 0 for padding.
        """

    def outputs(self, model: nn.Module, inputs: Arrays) -> Any:
        """Runs the model on a batch; the result is passed to `loss`.

        Args:
          model: the bound linen module; a second one is passed as a third argument.
          inputs: the inputs of a batch, arrays [B, ...].

        Returns:
          By default `DeferredLogits`: hidden states and the weights that turn them into logits.
        """
        return model.features(**with_decoder_start(inputs, model.cfg.decoder_start_token_id))

    @abc.abstractmethod
    def loss(self, outputs: Any, targets: Arrays, *, chunks: int) -> LossSums:
        """Computes the loss and the metrics of a batch, or of a part of one, as sums and weights.

        Args:
          outputs: what `outputs` returned.
          targets: the targets of the batch, arrays [B, ...].
          chunks: number of parts of the batch whose logits are computed one after another.
        """

    @property
    def compares_rows(self) -> bool:
        """Whether the loss is one of all rows of a batch together, also of its microbatches.

        A train step then computes the outputs of all microbatches before the loss; `outputs` must
        return floating-point arrays [B, ...].
        """
        return False

    def predictions(self, outputs: Any) -> dict[str, jax.Array]:
        """Returns the predictions that evaluation keeps for `scores` and `decode`.

        Returns:
          Arrays [B, ...] by name; by default none.
        """
        return {}

    def scores(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> dict[str, float]:
        """Computes metrics that are not means over examples, such as F1.

        Args:
          predictions: the predictions of the evaluated examples, [N, ...].
          examples: [N] int, the numbers of the examples in the records of the data.
          data: the held-out Dataset.
        """
        return {}

    def breakdown(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> list[Breakdown]:
        """Returns tables that break the metrics down, such as scores per class.

        Args:
          predictions, examples, data: as in `scores`.
        """
        return []

    def make_stepper(self, experiment: Any, tools: StepTools) -> Callable | None:
        """Returns the step of a run, (state, batch) -> (state, metrics).

        Its attribute `ahead` may say how many steps are sent to the devices before a result is
        read, and its method `complete(state, batch)` prepare a batch, as `replay` asks it to.

        Args:
          experiment: the run (runs/experiment.py), with its program and data.
          tools: what the run lets a step do besides training.

        Returns:
          By default None, for the step of the program.
        """
        return None

    def published_fields(self) -> Json:
        """Returns what published weights record about the task: fields of config.json.

        Such as `labels`, the names of the classes in the order of the logits, once they are known.
        """
        return {}

    def held_out_metrics(self, metrics: dict[str, float], data: Dataset) -> dict[str, float]:
        """Returns the metrics of held-out examples, with those added that depend on the data.

        Args:
          metrics: the results of `metrics` and `scores`.
          data: the held-out Dataset.
        """
        return metrics

    def fit_baseline(self, data: Dataset) -> Json:
        """Fits the baseline to the training split of a Dataset.

        Returns:
          What it learned, as JSON; by default {}, for a baseline that learns nothing.
        """
        return {}

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        """Returns the name and headline value of a trivial baseline, or None.

        Args:
          data: a Dataset; only its held-out split is read.
          fitted: what `fit_baseline` returned for the training examples; None if it is unknown, in
            which case a baseline that must be fitted returns None.
        """
        return None


def with_decoder_start(inputs: Arrays, start: int | None) -> Arrays:
    """Starts each target of a row with the model's decoder_start_token_id, such as BART's.

    None keeps the input.
    """
    if start is None or "decoder_segment_ids" not in inputs:
        return inputs
    segments_BT = inputs["decoder_segment_ids"]
    ids_BT = inputs["decoder_input_ids"]
    begins_BT = jnp.diff(segments_BT, axis=1, prepend=jnp.zeros_like(segments_BT[:, :1])) > 0
    return {**inputs, "decoder_input_ids": jnp.where(begins_BT, jnp.int32(start), ids_BT)}
