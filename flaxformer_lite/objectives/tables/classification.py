"""Classification of texts or pairs of texts, into one class or several, and regression of a number.

Reference: Devlin et al. 2019, section 4.1 (arXiv:1810.04805); class weights as in King and Zeng
2001, "Logistic Regression in Rare Events Data".
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import expit, softmax

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.rules import OneOf, Positive, Probability
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.objectives.base import (
    ACCURACY,
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
    Rows,
    StoredColumn,
    pad_row,
)
from flaxformer_lite.objectives.sums import LossSums
from flaxformer_lite.objectives.tables import scores
from flaxformer_lite.objectives.tables.breakdown import (
    Breakdown,
    Cell,
    class_table,
    confusion_matrix,
    confusion_tables,
    shorten_text,
    worst_table,
)
from flaxformer_lite.objectives.tables.task import (
    Column,
    Labelled,
    Row,
    is_container,
    number_of,
    parse_list,
    texts_of,
)
from flaxformer_lite.types import Arrays, Predictions

Kind = Annotated[str, OneOf(("single", "multiple", "number"))]
Weighting = Annotated[str, OneOf(("none", "balanced"))]
SEPARATORS = (";", "|", ",")  # between several labels in one field of csv
ON_OR_OFF = {"0", "1", "0.0", "1.0", "False", "True"}  # of each class, in place of their names
NAMES_OF_ON = "In place of a 0 or 1 for each class, write the names of those that are 1."
WAY_TO_SEVERAL = "several labels of a row are read with --config.objective.kind=multiple"
PROBLEMS = {  # what config.json calls each kind
    "single": "single_label_classification",
    "multiple": "multi_label_classification",
    "number": "regression",
}
LABEL_THRESHOLD = 0.5  # of each of several labels, as in transformers
MIN_CLASS_ROWS = 2  # rows of a class, less than which are reported
MAX_NAMED_LABELS = 5  # most labels that a remark names
# More numbers with a point are no classes, and of more names most must have several rows: else they
# are free text: a class with a single row would learn nothing.
MOST_NUMBERS = 20
MOST_NAMES = 1000
LOSS = Metric("loss", unit="nats per text")
METRICS = {
    "single": (
        ACCURACY,
        score_metric("f1", "F1"),
        score_metric("matthews", "Matthews correlation"),
        LOSS,
    ),
    "multiple": (
        score_metric("f1_micro", "micro F1", live=True),
        score_metric("f1_macro", "macro F1"),
        ACCURACY,
        LOSS,
    ),
    "number": (
        Metric("squared_error", live=True),
        score_metric("pearson", "Pearson correlation", live=True),
        score_metric("spearman", "Spearman correlation"),
    ),
}
TEXTS = (
    "sentence",
    "sentence1",
    "text1",
    "premise",
    "question1",
    "question",
    "content",
    "review",
    "document",
    "tweet",
)


Target = np.float32 | np.int32 | np.ndarray  # a number, a label, or whether each label is one


@dataclass(frozen=True, kw_only=True)
class Classification(Labelled):
    """Maximizes log P(label | text); a text that does not fit its row is truncated.

    `kind="single"` has one label per row, a softmax over classes. `multiple` has any number of
    labels, each class a sigmoid of its own; a field of csv holds them with `;`, `|` or `,` in
    between, or as a list of JSON. `number` predicts a number by its squared error. With a second
    text in the row the model reads the pair.
    """

    kind: Kind = "single"
    label_smoothing: Probability = 0.0  # of the single label
    weighting: Weighting = "none"  # balanced: each class weighs the same in all, however rare
    class_weights: tuple[Positive, ...] = ()  # of the loss, in the order of the labels

    head = "sequence_classification"
    ignores_padding = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("text", TEXTS),
        Column(
            "second", ("sentence2", "text2", "text_pair", "hypothesis", "question2"), optional=True
        ),
        Column(
            "label", ("labels", "class", "category", "target", "score", "rating"), predicted=True
        ),
    )
    sample = (
        {"text": "a good day", "second": None, "label": "good"},
        {"text": "rain and more rain", "second": None, "label": "bad"},
    )

    @property
    def stored(self) -> Mapping[str, StoredColumn]:  # type: ignore[override]
        label = StoredColumn("int32", ())
        if self.kind == "number":
            label = StoredColumn("float32", ())
        if self.kind == "multiple":
            label = StoredColumn("int32", (len(self.labels),))
        return {"ids": StoredColumn("token"), "second": StoredColumn("int32", ()), "label": label}

    @property
    def shown(self) -> tuple[Metric, ...]:  # type: ignore[override]
        return METRICS[self.kind]

    def fit(self, rows: Sequence[Row], names: ClassNames, known: tuple[str, ...] = ()) -> Self:
        if self.kind == "number":
            return self
        counts = self.count_labels(rows)
        total = sum(count for _, count in counts)
        labels = self.fitted_labels(counts, names.get("label", ()), known)
        are_floats = all(isinstance(value, float) for value, _ in counts)
        shown = f"such as {labels[0][:40]!r} and {labels[1][:40]!r}" if len(labels) > 1 else ""
        if len(labels) > MOST_NUMBERS and are_floats:
            raise ConfigError(
                f"data.path: {len(labels)} different labels, {shown}; is the column right? Numbers"
                " are predicted with --config.objective.kind=number."
            )
        if not self.labels and len(labels) > MOST_NAMES and total < 2 * len(labels):
            raise ConfigError(
                f"data.path: {len(labels)} different labels in {total} rows, {shown}; is"
                " the column right? Texts are written with --config.objective.name=text_to_text,"
                " numbers predicted with --config.objective.kind=number; to take them as classes"
                " all the same, list them in objective.labels of a page."
            )
        if len(labels) < 2 and self.kind == "single":
            raise ConfigError(
                f"data.path: all rows have the label {labels[0]!r}; there is nothing to learn from"
                " one."
            )
        if self.class_weights and len(self.class_weights) != len(labels):
            raise ConfigError(
                f"objective.class_weights: {len(self.class_weights)} weights for {len(labels)}"
                f" labels ({', '.join(labels[:8])}); give one for each."
            )
        if self.kind == "single" and not self.labels:
            _check_combinations([value for value, _ in counts], known)
        if self.kind == "multiple" and not self.labels:
            _check_separators(rows)
        if self.kind == "multiple" and all(count == len(rows) for _, count in counts):
            raise ConfigError(
                f"data.path: all rows have the same labels ({', '.join(labels[:8])}); there is"
                f" nothing to learn. {NAMES_OF_ON}"
            )
        weights = self.class_weights
        fitted = dataclasses.replace(self, labels=labels)
        if self.weighting == "balanced" and not weights:
            rows_of: collections.Counter[int] = collections.Counter()
            for value, count in counts:
                rows_of[fitted.index(value, "data.path", names.get("label", ()))] += count
            average = total / len(labels)
            weights = tuple(average / max(1, rows_of[i]) for i in range(len(labels)))
        return dataclasses.replace(fitted, class_weights=weights)

    @classmethod
    def of_published(cls, published: Json, labels: tuple[str, ...]) -> Self:
        problem = published.get("problem_type")
        # As in transformers, where num_labels=1 without a problem_type is a regression.
        if not problem and len(labels) == 1:
            problem = PROBLEMS["number"]
        kind = next((kind for kind, named in PROBLEMS.items() if named == problem), "single")
        if kind == "number" and len(labels) == 1:
            labels = ()
        return cls(labels=labels, kind=kind)

    def published_fields(self) -> Json:
        return super().published_fields() | {"problem_type": PROBLEMS[self.kind]}

    def is_missing(self, role: str, value: object) -> bool:
        if self.kind == "multiple" and isinstance(value, str) and not value.strip():
            return False  # none of several labels
        return super().is_missing(role, value)

    def remarks(self, records: Mapping[str, Rows]) -> list[str]:
        if self.kind != "single":
            return super().remarks(records)
        remarks = super().remarks(records)
        classes = len(self.labels)
        train_C = np.bincount(records["train"].column("label"), minlength=classes)
        eval_C = np.bincount(records["eval"].column("label"), minlength=classes)
        few = []
        for label, train, held in zip(self.labels, train_C, eval_C, strict=True):
            if train < MIN_CLASS_ROWS:
                few.append(f"{label!r} ({train} to train on, {held} held out)")
        if few:
            more = f" and {len(few) - MAX_NAMED_LABELS} more" if len(few) > MAX_NAMED_LABELS else ""
            named = ", ".join(few[:MAX_NAMED_LABELS])
            remarks.append(f"labels of one row or none to train on: {named}{more}")
        return remarks

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        ids = [encoder.token_ids(texts_of(rows, "text"))]
        if encoder.has("second"):
            ids.append(encoder.token_ids(texts_of(rows, "second")))
        records: list[list[Encoded]] = []
        names = encoder.classes.get("label", ())
        target_of: dict[str, Target] = {}  # of a label, as most rows repeat one
        for i, (row, *texts) in enumerate(zip(rows, *ids, strict=True)):
            tokens = encoder.frame.join_ids(*texts, limit=encoder.length)
            label = row["label"]
            if not isinstance(label, str):
                target = self._target(row, i, names)
            else:
                if label not in target_of:
                    target_of[label] = self._target(row, i, names)
                target = target_of[label]
            records.append([{**tokens._asdict(), "label": target}])
        return records

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids, attention_mask and, for pairs, token_type_ids, [T] int32.

        Targets are `label`, [] int32 ([C] if `multiple`), or `number`, [] float32, with their
        weights, [] float32.
        """
        record = records.pieces(index)[0]
        target = record["label"]
        weight = np.float32(1)
        if self.kind == "single" and self.class_weights:
            weight = np.float32(self.class_weights[int(target)])  # what the mean divides by
        name = "number" if self.kind == "number" else "label"
        inputs = pad_row(record["ids"], records, record["second"])
        return {"inputs": inputs, "targets": {name: target, "weights": np.asarray(weight)}}

    def outputs(self, model: nn.Module, inputs: Arrays) -> jax.Array:
        return model(**inputs).logits.astype(jnp.float32)

    def loss(self, outputs: jax.Array, targets: Arrays, *, chunks: int) -> LossSums:
        logits_BC = outputs
        weight_B = targets["weights"]
        seen_B = (weight_B > 0).astype(jnp.float32)  # padding of the last batch has none
        count = seen_B.sum()
        if self.kind == "number":
            error_B = jnp.square(logits_BC[:, 0] - targets["number"])
            return LossSums(
                {"weights": (error_B * weight_B).sum()},
                {"weights": weight_B.sum()},
                {"squared_error": ((error_B * seen_B).sum(), count)},
            )
        label = targets["label"]
        scale_B = weight_B
        if self.kind == "multiple":
            scale_C = jnp.asarray(self.class_weights or 1.0)
            loss_B = (optax.sigmoid_binary_cross_entropy(logits_BC, label) * scale_C).mean(axis=-1)
            right_B = jnp.all((logits_BC > 0) == (label > 0), axis=-1)
        else:
            smooth_BC = optax.smooth_labels(
                jax.nn.one_hot(label, logits_BC.shape[-1]), self.label_smoothing
            )
            if self.class_weights and self.label_smoothing:
                # As in torch: each class's share of the smoothed label weighs as that class does.
                smooth_BC = smooth_BC * jnp.asarray(self.class_weights)[None]
                scale_B = seen_B
            loss_B = optax.softmax_cross_entropy(logits_BC, smooth_BC)
            right_B = jnp.argmax(logits_BC, axis=-1) == label
        return LossSums(
            {"weights": (loss_B * scale_B).sum()},
            {"weights": weight_B.sum()},
            {"accuracy": (jnp.where(right_B, seen_B, 0.0).sum(), count)},
        )

    def predictions(self, outputs: jax.Array) -> dict[str, jax.Array]:
        return {"logits": outputs}

    def scores(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> dict[str, float]:
        logits_NC = predictions["logits"]
        target = data.records.column("label")[examples]
        if self.kind == "number":
            return scores.compute_correlations(logits_NC[:, 0], target)
        if self.kind == "multiple":
            return scores.multiple_labels(logits_NC > 0, target)
        return scores.single_label(logits_NC.argmax(axis=-1), target, classes=len(self.labels))

    def breakdown(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> list[Breakdown]:
        """Returns the scores of each class, the confusion matrix, and the worst errors."""
        records = data.records
        logits_NC = predictions["logits"].astype(np.float64)
        target = records.column("label")[examples]

        def text(number: int) -> str:
            row = records.rows[records.table_rows[examples[number]]]
            texts = [row[role] for role in ("text", "second") if row[role]]
            return shorten_text(" | ".join(texts))

        if self.kind == "number":
            error = np.abs(logits_NC[:, 0] - target)

            def wrong_number(i: int) -> list[Cell]:
                return [float(target[i]), float(logits_NC[i, 0]), text(i)]

            return [worst_table(("true", "predicted", "text"), error, wrong_number)]
        if self.kind == "multiple":
            class_values = scores.label_scores(logits_NC > 0, target)
            thresholds = scores.best_thresholds(expit(logits_NC), target)
            tuned: list[list[Cell]] = []
            for label, threshold, f1 in zip(self.labels, *thresholds, strict=True):
                tuned.append([label, float(threshold), float(f1)])
            title = f"thresholds that are best on these rows, in place of {LABEL_THRESHOLD}"
            return [
                class_table(self.labels, class_values, "label"),
                Breakdown(title, ("label", "threshold", "F1"), tuned),
            ]
        chosen = logits_NC.argmax(axis=-1)
        counts_CC = confusion_matrix(chosen, target, len(self.labels))
        share_N = softmax(logits_NC, axis=-1)[np.arange(len(target)), target]
        wrong = np.where(chosen == target, 0.0, 1 - share_N)

        def wrong_class(i: int) -> list[Cell]:
            names = [self.labels[target[i]], self.labels[chosen[i]]]
            return [*names, float(share_N[i]), text(i)]

        head = ("true", "predicted", "probability of the true one", "text")
        return [
            *confusion_tables(self.labels, counts_CC),
            worst_table(head, wrong, wrong_class),
        ]

    def decode(self, predictions: Predictions, records: Rows) -> list[Json]:
        """Returns for each row `prediction` and, for classes, `probability_LABEL` of each.

        A published model of several numbers has `prediction_LABEL` of each instead.
        """
        logits_NC = predictions["logits"].astype(np.float64)
        if self.kind == "number":
            names = [f"prediction_{label}" for label in self.labels] or ["prediction"]
            return [dict(zip(names, row, strict=True)) for row in logits_NC.tolist()]
        if self.kind == "multiple":
            return self.name_shares(expit(logits_NC), several=True)
        return self.name_shares(softmax(logits_NC, axis=-1))

    def name_shares(self, shares_NC: np.ndarray, *, several: bool = False) -> list[Json]:
        """Names the probability of each label, and the most probable one.

        With `several`, names all labels that are more probable than LABEL_THRESHOLD.
        """
        decoded = []
        for shares in shares_NC.tolist():
            of_label = dict(zip(self.labels, shares, strict=True))
            chosen = max(of_label, key=of_label.__getitem__)
            if several:
                chosen = ";".join(name for name in self.labels if of_label[name] > LABEL_THRESHOLD)
            row = {"prediction": chosen}
            for name, share in of_label.items():
                row[f"probability_{name}"] = share
            decoded.append(row)
        return decoded

    def fit_baseline(self, data: Dataset) -> Json:
        """Returns the constant prediction of the baseline.

        It is the mean number, the labels that more than half of the rows have, or the most frequent
        class.
        """
        train = data.splits["train"].column("label")
        if self.kind == "number":
            return {"always": float(train.mean())}
        if self.kind == "multiple":
            return {"always": (train.mean(axis=0) > 0.5).astype(int).tolist()}
        return {"always": int(np.bincount(train).argmax())}

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        """Returns the held-out score of the constant prediction."""
        if fitted is None:
            return None
        held = data.splits["eval"].column("label")
        always = fitted["always"]
        if self.kind == "number":
            return "always the mean", float(np.square(held - always).mean())
        if self.kind == "multiple":
            name = "always the labels of over half the training rows"
            if not any(always):
                name = "always no label (none is on over half the training rows)"
            return name, scores.micro_f1(np.broadcast_to(always, held.shape), held)
        return "majority class of the training rows", float((held == always).mean())

    def show(self, records: Rows, index: int) -> str:
        target = records.pieces(index)[0]["label"]
        tokens = len(records.pieces(index)[0]["ids"])
        if self.kind == "number":
            answer = f"{float(target):g}"
        elif self.kind == "multiple":
            answer = ", ".join(self.labels[i] for i in np.flatnonzero(target))
        else:
            answer = self.labels[target]
        return f"{super().show(records, index)!r:.300} -> {answer} ({tokens} tokens)"

    def labels_in(self, row: Row, number: int) -> list:
        if self.kind == "number":
            return []
        value = row["label"]
        if self.is_missing("label", value):
            raise ConfigError(f"row {number + 1} has no label; remove it, or predict it.")
        if value in self.labels:
            return [value]
        where = f"row {number + 1}: label={quote_value(value)}"
        if isinstance(value, dict):
            raise ConfigError(
                f"{where} is an object; name the key that has the label with"
                " --config.data.columns=label=COLUMN.KEY."
            )
        if self.kind == "multiple":
            return _several_labels(value, where)
        if is_container(value):
            raise ConfigError(f"{where} is a list and no class; {WAY_TO_SEVERAL}.")
        return [value]

    def _target(self, row: Row, number: int, names: tuple[str, ...]) -> Target:
        known = row["label"] is not None  # otherwise it is predicted
        if self.kind == "number":
            if known and len(self.labels) > 1:
                raise ConfigError(
                    f"row {number + 1}: label is one number, and the model predicts"
                    f" {len(self.labels)} ({', '.join(self.labels[:8])}); predict prints them."
                )
            return number_of(row, "label", number) if known else np.float32(0)
        indices = []
        if known:
            where = f"row {number + 1}"
            indices = [self.index(value, where, names) for value in self.labels_in(row, number)]
        if self.kind == "single":
            return np.int32(indices[0] if known else 0)
        return np.isin(np.arange(len(self.labels)), indices).astype(np.int32)


def _several_labels(value: object, where: str) -> list:
    """Returns the labels in a field: a list, its JSON, or a text with separators."""
    labels = parse_list(value)
    if labels is None and isinstance(value, str) and not is_container(value):
        separator = _separator_in(value) or SEPARATORS[0]
        labels = [part.strip() for part in value.split(separator) if part.strip()]
    if labels is None:
        labels = [value]
    if any(map(is_container, labels)):
        raise ConfigError(
            f"{where}: must be a list of names, its JSON, or names with one of"
            f" {' '.join(SEPARATORS)} in between."
        )
    names = list(map(str, labels))
    if len(set(names)) < len(names) and ON_OR_OFF.issuperset(names):
        raise ConfigError(f"{where}: repeats a label. {NAMES_OF_ON}")
    return labels


def _separator_in(text: str) -> str:
    """Returns the first of SEPARATORS that a text has; empty: none."""
    return next((separator for separator in SEPARATORS if separator in text), "")


def _check_separators(rows: Sequence[Row]) -> None:
    """Rejects texts of labels of which some have one separator and some another."""
    texts: dict[str, str] = {}
    for row in rows:
        text = row["label"]
        if isinstance(text, str) and not is_container(text):
            texts.setdefault(_separator_in(text), text)
    texts.pop("", None)
    if len(texts) > 1:
        shown = " and ".join(map(quote_value, texts.values()))
        raise ConfigError(
            f"data.path: the labels {shown} have different separators; write lists of JSON, or name"
            " all labels in objective.labels."
        )


def _check_combinations(labels: Sequence[object], known: Sequence[str]) -> None:
    """Rejects classes such as `b|c` where each part is a class, too, or a part of others."""
    texts = [label for label in labels if isinstance(label, str)]
    for separator in SEPARATORS:
        parts_of = {text: [part.strip() for part in text.split(separator)] for text in texts}
        seen = collections.Counter(part for parts in parts_of.values() for part in parts)
        for text, parts in parts_of.items():
            if len(parts) > 1 and text not in known and all(p and seen[p] > 1 for p in parts):
                raise ConfigError(
                    f"data.path: the label {quote_value(text)} looks like several of the others;"
                    f" {WAY_TO_SEVERAL}. If it is one class, list all in objective.labels."
                )
