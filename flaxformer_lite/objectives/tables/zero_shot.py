"""Classification by labels that a model was not trained for, from what a text entails.

Reference: Yin et al. 2019, section 5 (arXiv:1909.00161); scores are those of transformers' pipeline
for zero-shot classification.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import expit, softmax

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.rows import Encoded, Encoder, Rows
from flaxformer_lite.objectives.tables.classification import TEXTS, Classification
from flaxformer_lite.objectives.tables.task import Column, Row, texts_of
from flaxformer_lite.types import Predictions

HYPOTHESIS = "This example is {}."  # transformers' default


@dataclass(frozen=True, kw_only=True)
class ZeroShot(Classification):
    """Predicts which of `labels` a text has, by a model of natural-language inference.

    The model reads the text with a hypothesis about each label. The logits of "entailment" are
    compared between labels; with `multi_label`, or for one label, with that of "contradiction".
    """

    hypothesis: str
    entailment: int  # the number of its logit
    multi_label: bool = False

    columns = (Column("text", TEXTS),)

    @classmethod
    def of_classes(
        cls, classes: Sequence[str], labels: tuple[str, ...], hypothesis: str, *, multi_label: bool
    ) -> Self:
        """Makes the task of a model with these classes.

        Raises:
          ConfigError: none of them is "entailment", there are no labels, or the hypothesis has no
            place for one.
        """
        if not labels:
            raise ConfigError("--labels: names no label; separate them with commas.")
        if "{}" not in hypothesis:
            raise ConfigError(f"--hypothesis={hypothesis!r}: must have {{}} in place of a label.")
        # as in transformers: entailment, ENTAILMENT, entails
        entails = [name.lower().startswith("entail") for name in classes]
        if not any(entails):
            raise ConfigError(
                "--labels: needs a model of natural-language inference, with a label entailment;"
                f" this model's are {', '.join(classes[:8]) or 'none'}: choose another, or name"
                " them in id2label of its config.json."
            )
        return cls(
            labels=labels,
            hypothesis=hypothesis,
            entailment=entails.index(True),
            multi_label=multi_label,
        )

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        about = encoder.token_ids([self.hypothesis.replace("{}", label) for label in self.labels])
        records: list[list[Encoded]] = []
        for text in encoder.token_ids(texts_of(rows, "text")):
            of_row: list[Encoded] = []
            for hypothesis in about:
                tokens = encoder.frame.join_ids(text, hypothesis, limit=encoder.length, whole=1)
                of_row.append({**tokens._asdict(), "label": np.int32(0)})
            records.append(of_row)
        return records

    def decode(self, predictions: Predictions, records: Rows) -> list[Json]:
        """Returns for each row `prediction`, and `probability_LABEL` of each."""
        logits_NC = predictions["logits"].astype(np.float64)
        entail_NL = logits_NC[:, self.entailment].reshape(-1, len(self.labels))
        if len(self.labels) > 1 and not self.multi_label:
            return self.name_shares(softmax(entail_NL, axis=-1))
        contradiction = 0
        if self.entailment == 0:
            contradiction = -1
        contradict_NL = logits_NC[:, contradiction].reshape(-1, len(self.labels))
        return self.name_shares(expit(entail_NL - contradict_NL), several=True)
