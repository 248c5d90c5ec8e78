"""Knowledge distillation: a student learns from labels and from a trained teacher's predictions.

Reference: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", section 2
(arXiv:1503.02531); Sanh et al. 2019, "DistilBERT", section 3 (arXiv:1910.01108).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import flax
import flax.linen as nn
import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.config.rules import (
    ConfigError,
    ModelPlace,
    NotNegative,
    OneOf,
    Positive,
    Probability,
    Range,
)
from flaxformer_lite.nn.functions.losses import DeferredLogits, SoftTargets
from flaxformer_lite.objectives.auxiliary_model import AuxiliaryModel
from flaxformer_lite.objectives.base import Metric
from flaxformer_lite.objectives.row_plans import NUM_PLANS, RowPlan
from flaxformer_lite.objectives.rows import Example, Rows, Tokenizer
from flaxformer_lite.objectives.sums import LossSums, token_loss
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.objectives.text.masked_lm import MaskedLm
from flaxformer_lite.objectives.text.text_objective import TextObjective
from flaxformer_lite.types import Arrays

TASKS: dict[str, CausalLm | MaskedLm] = {"causal_lm": CausalLm(), "masked_lm": MaskedLm()}


class Taught(flax.struct.PyTreeNode):
    """The input of the loss: the deferred logits of student and teacher for the same tokens."""

    projection: DeferredLogits
    teacher: DeferredLogits


@dataclass(frozen=True, kw_only=True)
class Distillation(TextObjective):
    """Minimizes `(1 - a) L + a t^2 KL(p || q)`.

    L is the loss of `task`; p and q are the distributions of teacher and student with logits
    divided by t.

    The teacher sees the same tokens, without dropout, and needs the same tokenizer. It is read from
    its directory again when a run continues, and is not in the checkpoints; other weights are
    refused then. DistilBERT's third term, the cosine between hidden states, is left out, as it
    needs students of the teacher's width.
    """

    teacher: ModelPlace = ""  # directory of published weights, or workdir
    # with its own options at their defaults
    task: Annotated[str, OneOf(tuple(TASKS))] = "causal_lm"
    temperature: Positive = 2.0  # t
    # a; DistilBERT's is 5 / 7
    soft_weight: Annotated[float, Range(0, 1, "be between 0 and 1")] = 0.7
    z_loss: NotNegative = 0.0
    label_smoothing: Probability = 0.0

    num_plans = NUM_PLANS
    shown = (
        *TextObjective.shown,
        Metric(
            "divergence", "divergence from the teacher", unit="nats, times the temperature squared"
        ),
    )

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # others have a constant
        return TASKS[self.task].needs

    @property
    def skeletons(self) -> tuple[str, ...]:  # type: ignore[override]
        return TASKS[self.task].skeletons

    @property
    def head(self) -> str:  # type: ignore[override]
        return TASKS[self.task].head

    def auxiliary_model(self, model: ModelConfig) -> AuxiliaryModel:
        if not self.teacher:
            raise ConfigError(
                "objective.teacher: empty; set it to a directory of published weights or a workdir."
            )
        return AuxiliaryModel("teacher", source=self.teacher)

    def plan_rows(
        self,
        offsets: Mapping[str, np.ndarray],
        length: int,
        target_length: int,
        tokenizer: Tokenizer,
        *,
        shift: float = 0.0,
    ) -> RowPlan:
        return TASKS[self.task].plan_rows(offsets, length, target_length, tokenizer, shift=shift)

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Builds the example of `task`."""
        return TASKS[self.task].make_example(records, index, rng)

    def outputs(self, model: nn.Module, inputs: Arrays, teacher: nn.Module | None = None) -> Taught:
        assert teacher is not None, "an objective with a second model gets it"
        return Taught(
            *(super(Distillation, self).outputs(m, inputs).projection for m in (model, teacher))
        )

    def loss(self, outputs: Taught, targets: Arrays, *, chunks: int) -> LossSums:
        soft = SoftTargets(outputs.teacher, self.temperature, self.soft_weight)
        return token_loss(self, outputs, targets, chunks, soft)
