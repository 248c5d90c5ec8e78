"""The base of generation tasks: prompts and answers, scored on text generated for held-out rows."""

from dataclasses import dataclass
from typing import Annotated, TypedDict

import numpy as np

from flaxformer_lite.config.rules import Count, OneOf, Size
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import (
    Baseline,
    Dataset,
    Metric,
    Writer,
    score_metric,
)
from flaxformer_lite.objectives.rows import Rows
from flaxformer_lite.objectives.tables import scores
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.objectives.text.text_objective import TextObjective
from flaxformer_lite.types import Predictions

SCORES = {"bleu": scores.translation, "rouge": scores.summaries}
NEEDS = {"bleu": "sacrebleu", "rouge": "rouge_score.rouge_scorer"}
METRICS: dict[str, tuple[Metric, ...]] = {
    "bleu": (
        score_metric("bleu", "BLEU", form=".1f", live=True),
        score_metric("chrf", "chrF", form=".1f", live=True),
    ),
    "rouge": (
        score_metric("rouge1", "ROUGE-1", form=".1%", live=True),
        score_metric("rouge2", "ROUGE-2", form=".1%", live=True),
        score_metric("rougeLsum", "ROUGE-L", form=".1%", live=True),
    ),
    "none": (),
}
MAX_SHOWN_CHARACTERS = 400  # most characters of a text that is shown
ScoredBy = Annotated[str, OneOf(tuple(METRICS))]


class Limits(TypedDict):
    """Where generation stops."""

    max_new_tokens: int
    eos_token_id: int | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WritingTask(TextObjective, Task):
    """Base class of tasks that maximize the likelihood of a text and are judged by generated text.

    An example is the record of one row of the table, or in training with `packed` as many as fit.
    """

    # or rouge, none: what each evaluation computes of texts that the model writes
    scored_by: ScoredBy = "bleu"
    score_rows: Count = 32  # held-out rows that each evaluation writes for
    num_beams: Size = 1  # of the search that writes
    new_head = False
    strips_texts = True  # whether spaces around a written text are no part of it

    @property
    def shown(self) -> tuple[Metric, ...]:  # type: ignore[override]
        if not self.written_rows:
            return TextObjective.shown
        return METRICS[self.scored_by] + TextObjective.shown

    @property
    def written_rows(self) -> int:
        if not self.is_scored:
            return 0
        return self.score_rows

    @property
    def is_scored(self) -> bool:
        """Whether generated text is scored; warns once if the library is missing."""
        return self.scored_by != "none" and scores.import_library(NEEDS[self.scored_by]) is not None

    def prompt(self, records: Rows, example: int) -> np.ndarray:
        """Returns the ids of the prompt."""
        raise NotImplementedError

    def prompt_and_reference(self, records: Rows, example: int) -> tuple[str, str | None]:
        """Returns the prompt as text, and the reference text if it is known."""
        raise NotImplementedError

    def limits(self, records: Rows) -> Limits:
        """Returns `max_new_tokens` and `eos_token_id` for generation."""
        return {"max_new_tokens": records.target_length, "eos_token_id": records.tokenizer.eos_id}

    def write(self, write: Writer, records: Rows, examples: np.ndarray) -> dict[str, np.ndarray]:
        prompts = [self.prompt(records, int(i)) for i in examples]
        ids = write(prompts, width=records.length, num_beams=self.num_beams, **self.limits(records))
        texts = [records.tokenizer.decode(row) for row in ids]
        if self.strips_texts:
            texts = [text.strip() for text in texts]
        return {"written": np.asarray(texts, object), "tokens": np.asarray(list(map(len, ids)))}

    def scores(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> dict[str, float]:
        references = [self.prompt_and_reference(data.records, int(i))[1] for i in examples]
        known = [text for text in references if text is not None]
        if "written" not in predictions or not self.is_scored or len(known) < len(references):
            return {}
        return SCORES[self.scored_by](list(predictions["written"]), known)

    def fit_baseline(self, data: Dataset) -> Json:
        if self.written_rows:
            return {}
        return super().fit_baseline(data)

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        """Returns the score of copying the prompt; the unigram baseline if nothing is scored."""
        if not self.written_rows:
            return super().baseline(data, fitted)
        sources = []
        targets = []
        for i in data.order[: self.written_rows]:
            source, target = self.prompt_and_reference(data.records, int(i))
            if target is None:
                return None
            sources.append(source)
            targets.append(target)
        values = SCORES[self.scored_by](sources, targets)
        return "copying the source", values[self.shown[0].name]

    def decode(self, predictions: Predictions, records: Rows) -> list[Json]:
        """Returns for each row `prediction`, the generated text; None without an example."""
        by_row = dict(
            zip(records.table_rows.tolist(), predictions["written"].tolist(), strict=True)
        )
        return [{"prediction": by_row.get(i)} for i in range(len(records.rows))]

    def show_written(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> list[tuple[str, str]]:
        shown = []
        for example, text in zip(examples, predictions["written"], strict=True):
            read, reference = self.prompt_and_reference(data.records, int(example))
            shown += [
                ("read", _brief(read)),
                ("reference", _brief(reference or "")),
                ("written", _brief(text)),
            ]
        return shown

    def show(self, records: Rows, index: int) -> str:
        read, reference = self.prompt_and_reference(records, index)
        return f"{_brief(read)!r} -> {_brief(reference or '')!r}"


def _brief(text: str) -> str:
    if len(text) <= MAX_SHOWN_CHARACTERS:
        return text
    return f"{text[: MAX_SHOWN_CHARACTERS // 2]} ... {text[-MAX_SHOWN_CHARACTERS // 2 :]}"
