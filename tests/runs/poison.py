"""A text with one bad line, and an objective that turns it into a loss that is not finite."""

import dataclasses
import json

import jax.numpy as jnp

from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.text.tokenizer import Bytes
from tests.training import tiny_runs

LINE = 17  # of the text
BAD = Bytes().encode("@")[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisoned(CausalLm):
    def loss(self, outputs, targets, *, chunks):
        sums = super().loss(outputs, targets, chunks=chunks)
        factor = jnp.where((targets["labels"] == BAD).any(), jnp.float32("nan"), 1.0)
        return sums._replace(loss={term: loss * factor for term, loss in sums.loss.items()})


def config(folder, **train):
    cfg = tiny_runs.config(
        folder, objective=Poisoned(), train={"batch_size": 20, "log_every": 3, **train}
    )
    cfg = tiny_runs.with_dropout(cfg)  # a step again draws it again
    path = folder / "text.jsonl"
    lines = path.read_text().splitlines()[:30]
    lines[LINE - 1] = json.dumps({"text": "@from 16: " + "@" * 40})
    path.write_text("\n".join(lines) + "\n")
    return cfg
