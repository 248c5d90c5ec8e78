"""Extractive question answering: the span of a context that answers a question, or none.

References: Devlin et al. 2019, sections 4.2 and 4.3 (arXiv:1810.04805); Rajpurkar et al. 2018
(arXiv:1806.03822).
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.rules import Count, Float, Size
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import (
    Baseline,
    Dataset,
    Metric,
    score_metric,
)
from flaxformer_lite.objectives.rows import (
    ClassNames,
    Encoded,
    Encoder,
    Example,
    Record,
    Rows,
    StoredColumn,
    pad_row,
)
from flaxformer_lite.objectives.sums import LossSums, sum_weighted
from flaxformer_lite.objectives.tables.answers import Answer, answers_of, best_span, squad_scores
from flaxformer_lite.objectives.tables.task import Column, Row, Task, text_of, texts_of
from flaxformer_lite.text.special_tokens import FramedSpans, Spans
from flaxformer_lite.types import Arrays, Predictions

Borders = tuple[jax.Array, jax.Array]  # the logits of an answer's start and of its end, [B, T]


class Guess(NamedTuple):
    """The best answer of one or more windows."""

    score: float  # sum of the logits of its start and its end
    text: str  # the answer
    share: float  # the product of the probabilities of its start and its end, within their window
    none: float  # the score of no answer, where it is lowest
    none_share: float  # its share there


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Minimizes -(log P(start) + log P(end)) / 2, with softmax over the columns of a window.

    Padding behind a window counts, as in transformers, so windows are not packed, but batches are
    cut behind their longest window.

    A context that is too long is read in windows that share `stride` tokens, at most half of them.
    A window without the answer, or with a part of it, has the answer "none": its first token
    ([CLS]), or of decoders, where only the last token has read everything, an end-of-text token
    behind the context. The answer of a question is the best span of all its windows. It is none if
    the lowest score of none is higher by more than `null_threshold`, which is asked only if some
    training questions have no answer.
    """

    stride: Count = 128  # tokens of context that two windows share
    # most tokens of the question, and at most half of the window; more are cut
    question_length: Size = 64
    answer_length: Size = 30  # most tokens of a predicted answer
    null_threshold: Float = 0.0
    no_answer: bool = False  # set if training rows have questions without answers

    head = "question_answering"
    stored: ClassVar = {
        "ids": StoredColumn("token"),  # of a question with a part of its context
        "second": StoredColumn("int32", ()),
        "part": StoredColumn("int8", like="ids"),  # 1 for the context
        # characters of the context
        "char_start": StoredColumn("int32", like="ids"),
        "char_end": StoredColumn("int32", like="ids"),
        # the columns of the answer's first and last token, or that which stands for no answer
        "start": StoredColumn("int32", ()),
        "end": StoredColumn("int32", ()),
    }
    columns = (
        Column("question", ("query",)),
        Column("context", ("passage", "paragraph", "document", "text")),
        Column("answers", ("answer",), predicted=True),
    )
    sample = ({"question": "what?", "context": "a text", "answers": "text"},)
    shown = (
        score_metric("f1", "F1", form=".1%"),
        score_metric("exact", "exact match", form=".1%", live=True),
        score_metric("span_accuracy", "right spans in windows", form=".1%"),
        Metric("loss", unit="nats per border"),
    )

    def fit(self, rows: Sequence[Row], names: ClassNames, known: tuple[str, ...] = ()) -> Self:
        has_answer = [bool(_answers(row, number)) for number, row in enumerate(rows)]
        if not any(has_answer):
            raise ConfigError("data.path: no question has an answer; there is nothing to learn.")
        return dataclasses.replace(self, no_answer=self.no_answer or not all(has_answer))

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        answers = [_answers(row, number) for number, row in enumerate(rows)]
        questions = encoder.spans(texts_of(rows, "question"))
        contexts = encoder.spans(texts_of(rows, "context"))
        records: list[list[Encoded]] = []
        for question, context, answer in zip(questions, contexts, answers, strict=True):
            records.append(self._windows(question, context, answer, encoder))
        return records

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids, attention_mask, for some encoders token_type_ids, [T] int32.

        Targets are start and end, [] int32, and weights, [] float32.
        """
        record = records.pieces(index)[0]
        targets: dict[str, Any] = {
            "start": record["start"],
            "end": record["end"],
            "weights": np.float32(1),
        }
        return {"inputs": pad_row(record["ids"], records, record["second"]), "targets": targets}

    def outputs(self, model: nn.Module, inputs: Arrays) -> Borders:
        output = model(**inputs)
        return output.start_logits.astype(jnp.float32), output.end_logits.astype(jnp.float32)

    def loss(self, outputs: Borders, targets: Arrays, *, chunks: int) -> LossSums:
        borders = list(zip(outputs, (targets["start"], targets["end"]), strict=True))
        start, end = borders
        first_B = optax.softmax_cross_entropy_with_integer_labels(*start)
        last_B = optax.softmax_cross_entropy_with_integer_labels(*end)
        right_B = [jnp.argmax(logits, axis=-1) == column for logits, column in borders]
        return sum_weighted(
            (first_B + last_B) / 2, targets["weights"], span_accuracy=right_B[0] & right_B[1]
        )

    def predictions(self, outputs: Borders) -> dict[str, jax.Array]:
        return dict(zip(("start", "end"), outputs, strict=True))

    def scores(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> dict[str, float]:
        """Computes SQuAD's F1 and exact match of the questions that the examples belong to."""
        guesses = self._guesses(predictions, examples, data.records)
        answers = [self._answer(guess)[0] for guess in guesses.values()]
        return squad_scores(answers, _true(data.records, guesses))

    def decode(self, predictions: Predictions, records: Rows) -> list[Json]:
        """Returns for each row `prediction`, the text of the answer or "", and `probability`.

        The probability is the product of those of the answer's start and its end.
        """
        guesses = self._guesses(predictions, np.arange(len(records)), records)
        answers = [self._answer(guesses[number]) for number in range(len(records.rows))]
        return [{"prediction": text, "probability": share} for text, share in answers]

    def fit_baseline(self, data: Dataset) -> Json:
        """Chooses the length of the baseline's answer: the median in words, or 0 if better."""
        train = data.splits["train"]
        lengths = [len(answers[0].text.split()) for answers in map(_answers, train.rows) if answers]
        usual = int(np.median(lengths)) if lengths else 0
        return {"words": max(usual, 0, key=lambda words: _first_words_f1(words, train))}

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        """Answers with the first words of the context, or with nothing."""
        if fitted is None:
            return None
        name = "first words of the context" if fitted["words"] else "no answer"
        return name, _first_words_f1(fitted["words"], data.splits["eval"])

    def show(self, records: Rows, index: int) -> str:
        record = records.pieces(index)[0]
        row = records.table_row(index)
        answer = "no answer here"
        if record["start"] != _column_of_none(record, records):
            begin = record["char_start"][record["start"]]
            end = record["char_end"][record["end"]]
            answer = repr(row["context"][begin:end].strip())
        return f"{row['question']!r:.200} -> {answer:.200} ({len(record['ids'])} tokens)"

    def _windows(
        self, question: Spans, context: Spans, answers: list[Answer], encoder: Encoder
    ) -> list[Encoded]:
        """Joins a question with each window of its context."""
        frame = encoder.frame
        causal = encoder.skeleton == "decoder"
        if causal:
            frame = dataclasses.replace(frame, after=frame.after or (encoder.tokenizer.eos_id,))
        room = encoder.length - frame.specials(2)
        question = question.cut(0, min(self.question_length, room // 2))
        room -= len(question.ids)
        if room < 1:
            raise ConfigError(
                f"data.length={encoder.length}: leaves no token for a context; raise it."
            )
        shared = min(self.stride, room // 2)
        made: list[Encoded] = []
        for begin in range(0, max(len(context.ids) - shared, 1), room - shared):
            row = frame.join(
                question, context.cut(begin, begin + room), limit=encoder.length, whole=0
            )
            none = len(row.ids) - 1 if causal else 0
            start, end = _columns(row, answers[0], none) if answers else (none, none)
            record: Encoded = {
                "ids": row.ids,
                "second": row.second,
                "part": row.part,
                "char_start": row.start,
                "char_end": row.end,
                "start": start,
                "end": end,
                "cut": row.cut,
            }
            made.append(record)
        return made

    def _guesses(
        self, predictions: Predictions, examples: Iterable[int], records: Rows
    ) -> dict[int, Guess]:
        """Returns the best answer for each row that has an example."""
        guesses: dict[int, Guess] = {}
        for example, start, end in zip(
            examples, predictions["start"], predictions["end"], strict=True
        ):
            record = records.pieces(int(example))[0]
            row = records.table_row(int(example))
            number = int(records.table_rows[example])
            none = _column_of_none(record, records)
            guess = self._guess(record, none, row["context"], start, end)
            other = guesses.get(number)
            if other is not None:
                best = max(guess, other)
                least = min(guess, other, key=lambda each: each.none)
                guess = best._replace(none=least.none, none_share=least.none_share)
            guesses[number] = guess
        return guesses

    def _guess(
        self, record: Record, none: int, context: str, start_T: np.ndarray, end_T: np.ndarray
    ) -> Guess:
        """Returns the best answer of a window; `none` is the column of no answer."""
        columns = np.flatnonzero(record["part"] == 1)
        allowed = np.append(columns, none)
        start = start_T[allowed].astype(np.float64)
        end = end_T[allowed].astype(np.float64)
        total = np.logaddexp.reduce(start) + np.logaddexp.reduce(end)
        score, i, j = best_span(start[:-1], end[:-1], self.answer_length)
        text = ""
        if len(columns):
            begin = record["char_start"][columns[i]]
            text = context[begin : record["char_end"][columns[j]]].strip()
        of_none = float(start[-1] + end[-1])
        share, none_share = (float(np.exp(value - total)) for value in (score, of_none))
        return Guess(score, text, share, of_none, none_share)

    def _answer(self, guess: Guess) -> tuple[str, float]:
        """Returns the answer and its probability; the text is empty for no answer."""
        if self.no_answer and guess.none - guess.score > self.null_threshold:
            return "", guess.none_share
        return guess.text, guess.share


def _column_of_none(record: Record, records: Rows) -> int:
    """Returns the column of a window that stands for no answer."""
    if records.skeleton == "decoder":
        return len(record["ids"]) - 1
    return 0


def _answers(row: Row, number: int = 0) -> list[Answer]:
    return answers_of(row["answers"], text_of(row, "context", number), f"row {number + 1}")


def _true(records: Rows, rows: Iterable[int]) -> list[list[str]]:
    texts = []
    for number in rows:
        answers = _answers(records.rows[number])
        texts.append([answer.text for answer in answers])
    return texts


def _columns(row: FramedSpans, answer: Answer, none: int) -> tuple[int, int]:
    """Returns the columns of the answer's first and last token.

    Returns the column of "no answer" twice if the window does not hold the whole answer.
    """
    columns = np.flatnonzero(row.part == 1)
    begin = answer.start
    stop = answer.start + len(answer.text)
    held = columns[(row.end[columns] > begin) & (row.start[columns] < stop)]
    if not len(held) or row.start[columns[0]] > begin or row.end[columns[-1]] < stop:
        return none, none
    return int(held[0]), int(held[-1])


def _first_words_f1(count: int, records: Rows) -> float:
    """Returns the F1 of answering each row with the first words of its context."""
    first = [" ".join(row["context"].split()[:count]) for row in records.rows]
    return squad_scores(first, _true(records, range(len(records.rows))))["f1"]
