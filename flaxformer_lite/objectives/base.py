"""The protocol of objectives: examples, loss, metrics and baseline. The trainer knows no objective
by name.

A class of your own, in any module, trains in the same way as those in this folder:

    @dataclass(frozen=True, kw_only=True)
    class Mine(Objective):
        z_loss: float = 0.0  # --config.objective.z_loss=1e-4
        label_smoothing: float = 0.0

        def make_example(self, records, index, rng):
            (ids,) = records.row(index)
            return {"inputs": {"input_ids": ...}, "targets": {"labels": ..., "weights": ...}}

        def loss(self, outputs, targets, *, chunks):
            return token_loss(self, outputs, targets, chunks)  # of objectives/sums.py

    flaxformer_lite train --config=... --config.objective.name=my_module:Mine
"""

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ModelConfig, Record
from flaxformer_lite.objectives.companion import Companion
from flaxformer_lite.objectives.packing import Packing, beginnings
from flaxformer_lite.objectives.rows import Example, Tokenizer, with_decoder_start
from flaxformer_lite.objectives.sums import BY_SOURCE, LossSums, ratio
from flaxformer_lite.objectives.tables.breakdown import Breakdown
from flaxformer_lite.types import Batch, Json

SKELETONS = ("encoder", "decoder", "encoder_decoder")


class Dataset(Protocol):
    """The examples of a split, and of both splits (data/pipeline.py)."""

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


class Metric(NamedTuple):
    """A number in the records of metrics.jsonl, and how it is displayed."""

    name: str  # its key in the records
    label: str = ""  # in words; empty: the name
    form: str = ".3f"  # format specification of the number
    unit: str = ""
    higher_is_better: bool = False
    live: bool = False  # whether each evaluation shows it, as it always shows the headline

    @property
    def words(self) -> str:
        return self.label or self.name.replace("_", " ")

    def show(self, value: float) -> str:
        return f"{value:{self.form}}"


def score(name: str, label: str = "", form: str = ".3f", live: bool = False) -> Metric:
    """Returns a metric that is better the higher it is."""
    return Metric(name, label, form=form, higher_is_better=True, live=live)


ACCURACY = score("accuracy", form=".1%", live=True)
LOSS = Metric("loss")


@dataclass(frozen=True, kw_only=True)
class Objective(Record, abc.ABC):
    """Base class of objectives: a frozen dataclass with the options as its fields.

    Attributes:
      skeletons: the skeletons that it trains.
      head: the head that a model must have (or override `head_for`); empty: any.
      fields: texts that it reads from a document; keys of a jsonl line unless the text is plain.
      needs: attributes that the tokenizer must have, such as `cls_id`.
      shown: metrics that a run reports in words; the first is the headline, which is also plotted.
      written_rows: held-out examples for which each evaluation calls `write`.
      reference: the prediction of the starting weights that stays with each example
        (`LabelledRecords.reference`); or "".
      packings: how many ways of packing the epochs of a text take in turn; 1: all have the same
        rows.
      new_head: whether `train.init_from` may begin with a directory that lacks the head, which is
        then made new.
      reads_tables: whether its examples are rows of a table, as those of each Task, and not text.
      adopts: fields that take the value of the weights to start from where the config leaves them
        empty: `template`, the chat template, and `pooling`, of sentence vectors, come from the
        directory of `train.init_from`, `labels` with the data. A run that continues has kept them.
    """

    skeletons: ClassVar[tuple[str, ...]] = SKELETONS
    head: ClassVar[str] = ""
    fields: ClassVar[tuple[str, ...]] = ("text",)
    needs: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[Metric, ...]] = (LOSS,)
    reference: ClassVar[str] = ""
    packings: ClassVar[int] = 1
    new_head: ClassVar[bool] = False
    reads_tables: ClassVar[bool] = False
    adopts: ClassVar[tuple[str, ...]] = ()

    @property
    def written_rows(self) -> int:
        return 0

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits; () if there are none, or they are
        not known yet."""
        return ()

    @property
    def head_hint(self) -> str:
        """The way out where the weights to start from lack the head, for the end of the message;
        by default there is none."""
        return ""

    @property
    def sample_prompt(self) -> str:
        """A prompt like those that the model learns to continue; "" for one by its skeleton."""
        return ""

    @property
    def headline(self) -> Metric:
        return self.shown[0]

    def head_for(self, skeleton: str) -> str:
        """Returns the head that a model with this skeleton must have."""
        return self.head

    def companion(self, model: ModelConfig) -> Companion | None:
        """Returns the second model that `outputs` gets beside the first; by default there is
        none."""
        return None

    def facts(self) -> Json:
        """Returns the values of the fields of `adopts`, for `adopt`."""
        return {name: getattr(self, name) for name in self.adopts}

    def adopt(self, facts: Mapping[str, object]) -> Self:
        """Returns the objective with its empty fields of `adopts` filled in.

        Args:
          facts: values by field, as read from a directory or kept by a run (`facts`); others are
            ignored.
        """
        values = {name: facts[name] for name in self.adopts if facts.get(name)}
        empty = {name: value for name, value in values.items() if not getattr(self, name)}
        return dataclasses.replace(self, **empty)

    @classmethod
    def of_published(cls, published: Json, labels: tuple[str, ...]) -> Self:
        """Returns the objective that a published model was trained for.

        Args:
          published: its config.json, with its `head`, and with the `pooling` and `prompt` of a
            sentence model.
          labels: the names of its classes.
        """
        return cls()

    def check(self, model: ModelConfig, records: Any) -> None:
        """Refuses data that do not fit the model, such as labels without a logit.

        Raises:
          ConfigError: names the field, the rule and the way out.
        """
        return

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        """Returns the model with what it takes from the objective and its data, such as the number
        of classes."""
        return model

    def lengths(self, length: int, target_length: int) -> tuple[int, int]:
        """Returns the tokens of an example, and of its decoder side or 0, for data.length and
        data.target_length."""
        return length, 0

    def pack(
        self, offsets: np.ndarray, length: int, target_length: int, tokenizer: Tokenizer
    ) -> Packing:
        """Plans which pieces of documents form each row; by default each document has its own row,
        cut at `length`.

        A large text is packed in several calls, each for a range of its documents. Where `packings`
        is not 1, it is also given `shift`, in [0, 1), another for each of the packings: 0 for
        held-out text and the first epoch.

        Args:
          offsets: [documents + 1] int64, the start of each document among their tokens, and the end
            of the last.
          length, target_length: the results of `lengths`.
          tokenizer: gives the special ids.
        """
        return beginnings(offsets, length)

    @abc.abstractmethod
    def make_example(self, records: Any, index: int, rng: np.random.Generator) -> Example:
        """Builds the example of a row: {"inputs": for `outputs`, "targets": for `loss`}, with numpy
        arrays.

        Every floating array among the targets is a weight, named after its term of the loss, and 0
        for padding.
        """

    def outputs(self, model: nn.Module, inputs: Mapping[str, jax.Array]) -> Any:
        """Runs the bound model for `loss`; by default returns hidden states with the weights that
        make them logits."""
        return model.features(**with_decoder_start(inputs, model.cfg.decoder_start_token_id))

    @abc.abstractmethod
    def loss(self, outputs: Any, targets: Mapping[str, jax.Array], *, chunks: int) -> LossSums:
        """Computes loss and metrics of a batch, or a part of one, as sums with their weights."""

    def metrics(self, sums: LossSums) -> dict[str, jax.Array]:
        """Turns added-up sums into scalars (jax arrays while training): the loss, and the mean of
        each metric.

        The loss of a source without rows is NaN.
        """
        empty = {name: jnp.nan if name.startswith(BY_SOURCE) else 0.0 for name in sums.metrics}
        return {
            "loss": sums.mean(),
            **{name: ratio(*pair, empty[name]) for name, pair in sums.metrics.items()},
        }

    def predictions(self, outputs: Any) -> dict[str, jax.Array]:
        """Returns what evaluation keeps of each example for `scores` and `decode`, arrays [B, ...];
        {} by default."""
        return {}

    def scores(
        self, predictions: Mapping[str, np.ndarray], examples: np.ndarray, data: Dataset
    ) -> dict[str, float]:
        """Computes metrics that are no sums over examples, such as F1.

        Args:
          predictions: those of the evaluated examples, [N, ...].
          examples: [N] their numbers in the data's records.
          data: the held-out Dataset.
        """
        return {}

    def breakdown(
        self, predictions: Mapping[str, np.ndarray], examples: np.ndarray, data: Dataset
    ) -> list[Breakdown]:
        """Returns tables behind the metrics, such as scores per class; takes the arguments of
        `scores`."""
        return []

    def write(self, write: Writer, records: Any, examples: np.ndarray) -> dict[str, np.ndarray]:
        """Lets the model write for examples; what it returns is, like `predictions`, for `scores`
        and `decode`.

        Args:
          write: (prompts, width=, max_new_tokens=, **settings) -> ids of each; see
            inference/writer.py.
          records: the records of the examples.
          examples: [N] their numbers.
        """
        return {}

    def show_written(
        self, predictions: Mapping[str, np.ndarray], examples: np.ndarray, data: Dataset
    ) -> list[tuple[str, str]]:
        """Returns pairs of a title and a text about what `write` returned."""
        return []

    def published_fields(self) -> Json:
        """Returns what a published model says of the task: `labels`, and fields of config.json."""
        return {}

    def held_out_metrics(self, metrics: dict[str, float], data: Dataset) -> dict[str, float]:
        """Returns the metrics of held-out examples, including those that depend on the data (a
        Dataset)."""
        return metrics

    def fit_baseline(self, data: Dataset) -> Json:
        """Returns what the baseline learns from the training split of a Dataset, as JSON; by
        default {}, for one that learns nothing."""
        return {}

    def baseline(self, data: Dataset, fitted: Json | None) -> tuple[str, float] | None:
        """Returns the name and headline value of a trivial baseline, or None.

        Args:
          data: a Dataset, of which only the held-out split is read.
          fitted: what `fit_baseline` returned for the training examples; None if they are not
            known, and a baseline that learns from them has no value.
        """
        return None

    def transient_logits(
        self, batch: Batch, model: ModelConfig, rows: int, accumulate: int, chunks: int
    ) -> int:
        """Estimates how many logits exist at once on one chip, for memory planning; 0 if
        negligible.

        Args:
          batch: shapes of a whole batch.
          rows: rows of a microbatch on one chip.
          accumulate: microbatches per batch.
        """
        return 0
