"""Classes in an order, such as one to five stars: an objective of your own on the rows of a table,
outside the package.

    python examples/ordinal.py runs/stars.csv        # writes 600 sentences with a rating each
    flaxformer_lite train --config=classify --workdir=runs/stars --config.data.path=runs/stars.csv \
        --config.objective.name=examples.ordinal:Ordinal --config.data.eval_fraction=0.2

A wrong class costs the more, the further it is from the right one. Everything else is the
classification of the package: columns, labels, metrics, `evaluate`, `predict` and `convert`.
--config.train.init_from starts from published weights.

Reference: Diaz and Marathe 2019, "Soft Labels for Ordinal Regression" (CVPR), equation 3, with the
  distance |i - j|.
"""

import csv
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from flaxformer_lite.objectives import LossSums, Metric
from flaxformer_lite.objectives.tables.classification import Classification

WORDS = {1: "awful", 2: "poor", 3: "fair", 4: "good", 5: "superb"}


@dataclass(frozen=True, kw_only=True)
class Ordinal(Classification):
    """Minimizes the cross entropy with targets softmax(-sharpness * |class - label|)."""

    sharpness: float = 2.0

    @property
    def shown(self):
        return (*super().shown, Metric("distance", unit="classes from the right one"))

    def loss(self, outputs, targets, *, chunks):
        plain = super().loss(outputs, targets, chunks=chunks)  # for the accuracy
        distance_BC = jnp.abs(
            jnp.arange(outputs.shape[-1])[None] - targets["label"][:, None]
        ).astype(jnp.float32)
        wanted_BC = jax.nn.softmax(-self.sharpness * distance_BC)
        loss_B = -(wanted_BC * jax.nn.log_softmax(outputs)).sum(axis=-1)
        found_B = jnp.take_along_axis(distance_BC, outputs.argmax(axis=-1)[:, None], axis=1)[:, 0]
        seen_B = (targets["weights"] > 0).astype(jnp.float32)
        metrics = {**plain.metrics, "distance": ((found_B * seen_B).sum(), seen_B.sum())}
        return LossSums({"weights": (loss_B * targets["weights"]).sum()}, plain.weight, metrics)


def reviews(count: int, seed: int = 0) -> list[dict]:
    """Writes remarks about places, each with the number of stars that its words mean."""
    draw = random.Random(seed)
    places = [
        f"{kind} by the {where}"
        for kind in ("cafe", "inn", "bakery")
        for where in ("river", "station", "park")
    ]
    rows = []
    for visit in range(count):
        stars = draw.choice(list(WORDS))
        rows.append(
            {"text": f"Visit {visit}: a {WORDS[stars]} {draw.choice(places)}.", "label": stars}
        )
    return rows


def main(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows(reviews(600))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
