"""Multiple choice: selects the text that continues or answers another one.

References: Zellers et al. 2018, SWAG (arXiv:1808.05326); Devlin et al. 2019, section 4.4
(arXiv:1810.04805).
"""

import dataclasses
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.rules import Count
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import (
    ACCURACY,
    Baseline,
    Dataset,
    Metric,
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
from flaxformer_lite.objectives.sums import LossSums, class_loss
from flaxformer_lite.objectives.tables.task import Column, Row, Task, text_of
from flaxformer_lite.types import Arrays, Predictions

ENDINGS = tuple(
    Column(f"ending{i}", (f"choice{i + 1}", f"option{i + 1}", f"sol{i + 1}", letter), optional=True)
    for i, letter in enumerate("ABCDE")
)
ABSENT_LOGIT = -1e30  # the logit of a choice that a row lacks


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(Task):
    """Maximizes log P(choice | text), a softmax over one logit per pair of text and choice.

    A row has a `question` and its choices, as a list or {label, text} in the column `choices`, or
    as columns ending0, ending1, ... If there is a `start` (SWAG's sent2), each choice begins with
    it. If there is a `context`, it is the text, and each choice begins with the question. The label
    is a number from 0, the choice's name in {label, text}, its text, or its letter. Rows with fewer
    choices than others are filled up with choices of probability zero.
    """

    choices: Count = 0  # C, the most choices of a row; 0 for the most of the training rows

    skeletons = ("encoder",)
    stored: ClassVar = {
        "ids": StoredColumn("token"),  # of the text with each choice
        "text_lengths": StoredColumn("int32"),
        # of each choice, the column at which it begins
        "seconds": StoredColumn("int32", like="text_lengths"),
        "label": StoredColumn("int32", ()),
    }
    ignores_padding = True
    head = "multiple_choice"
    columns = (
        Column("question", ("sent1", "ctx", "prompt", "goal", "question_stem", "sentence", "text")),
        Column("context", ("article", "passage", "premise"), optional=True),
        Column("start", ("sent2",), optional=True),
        Column("choices", ("endings", "options", "answers"), optional=True),
        *ENDINGS,
        Column("label", ("answer", "answerKey", "correct"), predicted=True),
    )
    sample = (
        dict.fromkeys(column.role for column in columns)
        | {
            "question": "a text",
            "choices": ["one", "two"],
            "label": 0,
        },
    )
    shown = (ACCURACY, Metric("loss", unit="nats per question"))

    def fit(self, rows: Sequence[Row], names: ClassNames, known: tuple[str, ...] = ()) -> Self:
        most = 0
        for i, row in enumerate(rows):
            choices, _ = _choices(row, f"row {i + 1}")
            most = max(most, len(choices))
        return dataclasses.replace(self, choices=self.choices or most)

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        given = [_choices(row, f"row {i + 1}") for i, row in enumerate(rows)]
        texts = []
        endings = []
        for number, (row, (choices, _)) in enumerate(zip(rows, given, strict=True)):
            if self.choices and len(choices) > self.choices:
                raise ConfigError(
                    f"row {number + 1}: {len(choices)} choices, more than"
                    f" objective.choices={self.choices}."
                )
            if row["context"] is None:
                first = "question"
                start = "start"
            else:
                first = "context"
                start = "question"
            before = ""
            if row[start] is not None:
                before = text_of(row, start, number) + " "
            texts.append(text_of(row, first, number))
            for choice in choices:
                endings.append(before + text_of({"choice": choice}, "choice", number))
        first_of = encoder.token_ids(texts)
        second_of = iter(encoder.token_ids(endings))
        made: list[list[Encoded]] = []
        for number, (row, (choices, names)) in enumerate(zip(rows, given, strict=True)):
            pairs = []
            for _ in choices:
                ids = first_of[number], next(second_of)
                pairs.append(encoder.frame.join_ids(*ids, limit=encoder.length))
            record: Encoded = {
                "ids": np.concatenate([pair.ids for pair in pairs]),
                "text_lengths": np.asarray([len(pair.ids) for pair in pairs]),
                "seconds": np.asarray([pair.second for pair in pairs]),
                "label": np.int32(_label(row["label"], choices, names, f"row {number + 1}")),
                "cut": sum(pair.cut for pair in pairs),
            }
            made.append([record])
        return made

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids, attention_mask, for some encoders token_type_ids, [C, T] int32.

        Targets are label, [] int32, and weights, [] float32. A choice that the row lacks is
        padding, with one token attended to.
        """
        record = records.pieces(index)[0]
        rows = []
        for ids, second in zip(_choices_of(record), record["seconds"], strict=True):
            rows.append(pad_row(ids, records, second))
        absent = {name: np.zeros_like(x) for name, x in rows[0].items()}
        absent["input_ids"] += records.tokenizer.pad_id
        absent["attention_mask"][0] = 1  # a softmax over no tokens would be NaN
        rows += [absent] * (max(self.choices, records.num_texts) - len(rows))
        inputs = jax.tree.map(lambda *choices: np.stack(choices), *rows)
        return {"inputs": inputs, "targets": {"label": record["label"], "weights": np.float32(1)}}

    def outputs(self, model: nn.Module, inputs: Arrays) -> jax.Array:
        present_BC = inputs["attention_mask"][:, :, 1] > 0
        return jnp.where(present_BC, model(**inputs).logits.astype(jnp.float32), ABSENT_LOGIT)

    def loss(self, outputs: jax.Array, targets: Arrays, *, chunks: int) -> LossSums:
        return class_loss(outputs, targets["label"], targets["weights"])

    def predictions(self, outputs: jax.Array) -> dict[str, jax.Array]:
        return {"logits": outputs}

    def decode(self, predictions: Predictions, records: Rows) -> list[Json]:
        """Returns for each row `prediction`, an index, the text `choice`, and `probability`."""
        rows = []
        for row, logits in zip(records.rows, predictions["logits"].astype(np.float64), strict=True):
            best = int(logits.argmax())
            share = float(softmax(logits).max())
            choices, _ = _choices(row)
            rows.append({"prediction": best, "choice": choices[best], "probability": share})
        return rows

    def fit_baseline(self, data: Dataset) -> Json:
        positions = data.splits["train"].column("label")
        return {"position": int(np.bincount(positions).argmax())}

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        if fitted is None:
            return None
        held = data.splits["eval"].column("label")
        return "most frequent position", float((held == fitted["position"]).mean())

    def show(self, records: Rows, index: int) -> str:
        record = records.pieces(index)[0]
        right = _choices_of(record)[record["label"]]
        return f"{records.tokenizer.decode(right)!r:.300}, choice {record['label']}"


def _choices_of(record: Record) -> list[np.ndarray]:
    """Returns the ids of the text with each choice."""
    return np.split(record["ids"], np.cumsum(record["text_lengths"])[:-1])


def _choices(row: Row, where: str = "") -> tuple[list[str], list[str]]:
    """Returns the texts of the choices, and their names if they have any."""
    texts = row["choices"]
    names = None
    if texts is None:
        texts = [row[column.role] or "" for column in ENDINGS]
        while texts and not texts[-1]:
            texts.pop()
    elif isinstance(texts, dict):
        names = texts.get("label")
        texts = texts.get("text")
    are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not are_texts or len(texts) < 2:
        raise ConfigError(
            f"{where}: needs two choices or more, in a list or in the columns ending0, ending1,"
            f" ..., not {str(texts)[:80]!r}."
        )
    return texts, [str(name) for name in names or []]


def _label(value: object, choices: list[str], names: list[str], where: str) -> int:
    """Returns the index of the right choice; 0 if it is to be predicted."""
    if value is None:
        return 0
    text = str(value).strip()
    texts: list[str] = []
    if isinstance(value, str):
        texts = choices
    numbers = [str(i) for i in range(len(choices))]
    for among in (names, texts, numbers, list(string.ascii_uppercase[: len(choices)])):
        if text in among[: len(choices)]:
            return among.index(text)
    raise ConfigError(
        f"{where}: label={text[:40]!r} is none of its {len(choices)} choices: must be a number from"
        " 0, a name, a letter or the text of one."
    )
