"""Sequence classification, written outside the package: an objective of your own, trained like the built-in ones.

    python examples/classification.py runs/weather.jsonl       # writes 600 labeled sentences, one per line
    python train.py --config=configs/bert_tiny.py --workdir=runs/weather --config.data.path=runs/weather.jsonl \
        --config.objective.name=examples.classification:Classification --config.model.head=sequence_classification \
        --config.data.eval_fraction=0.2

Each line is {"text": "...", "label": 0}, where the label is the number of a class; `model.num_labels` is the number of
classes. --config.train.init_from starts from published weights.
"""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives import LossSums, Metric, Objective


@dataclass(frozen=True, kw_only=True)
class Classification(Objective):
    """Maximizes log P(label | [CLS] text [SEP]); a text that is too long for its row is cut."""

    label_smoothing: float = 0.0

    skeletons: ClassVar = ("encoder",)
    head: ClassVar = "sequence_classification"
    numbers: ClassVar = ("label",)
    needs: ClassVar = ("cls_id", "sep_id")
    shown: ClassVar = (Metric("accuracy", form=".1%", higher_is_better=True), Metric("loss", unit="nats per text"))

    def check(self, model, records):
        labels = records.numbers["label"]
        wrong = labels[(labels < 0) | (labels >= model.num_labels) | (labels % 1 > 0)]
        if len(wrong):
            raise ConfigError(
                f"data.path: there is a label {wrong[0]}, but model.num_labels={model.num_labels}: labels are"
                f" whole numbers from 0 to {model.num_labels - 1}; set model.num_labels."
            )

    def make_example(self, records, index, rng):
        tokenizer, (text,) = records.tokenizer, records.row(index)
        ids = np.concatenate([[tokenizer.cls_id], text[: records.length - 2], [tokenizer.sep_id]])
        padding = (0, records.length - len(ids))
        return {
            "inputs": {
                "input_ids": np.pad(ids, padding, constant_values=tokenizer.pad_id).astype(np.int32),
                "attention_mask": np.pad(np.ones_like(ids), padding).astype(np.int32),
            },
            "targets": {"label": np.int32(records.number(index, "label")), "weights": np.float32(1)},
        }

    def outputs(self, model, inputs):
        return model(**inputs).logits

    def loss(self, outputs, targets, *, chunks):
        logits_BC, label_B, weight_B = outputs.astype(jnp.float32), targets["label"], targets["weights"]
        logs_BC = jax.nn.log_softmax(logits_BC)
        right_B = jnp.take_along_axis(logs_BC, label_B[:, None], axis=1)[:, 0]
        smooth = self.label_smoothing
        loss_B = -(1 - smooth) * right_B - smooth * logs_BC.mean(axis=1)
        correct_B = (jnp.argmax(logits_BC, axis=1) == label_B).astype(jnp.float32)
        weight = weight_B.sum()
        return LossSums(
            {"weights": (loss_B * weight_B).sum()}, {"weights": weight},
            {"accuracy": ((correct_B * weight_B).sum(), weight)},
        )  # fmt: skip

    def baseline(self, data):
        """Returns the share of held-out texts with the class that is most frequent in training."""
        train, held_out = (data.splits[split].numbers["label"] for split in ("train", "eval"))
        classes, counts = np.unique(train, return_counts=True)
        return "majority class", float((held_out == classes[counts.argmax()]).mean())


def sentences(count: int, seed: int = 0) -> list[dict]:
    """Writes remarks about the weather, most of them kind (1), the others not (0)."""
    draw = random.Random(seed)
    words = {1: ("lovely", "warm", "bright"), 0: ("awful", "cold", "grey")}
    places = [
        f"{side} {place}" for side in ("north", "south", "east", "west") for place in ("coast", "hills", "valley")
    ]
    records = []
    for day in range(count):
        label = int(draw.random() < 0.6)
        text = f"Day {day}: {draw.choice(words[label])} weather in the {draw.choice(places)}."
        records.append({"text": text, "label": label})
    return records


def main(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in sentences(600)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
