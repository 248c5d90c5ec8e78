import dataclasses
import math

import jax
import numpy as np

from flaxformer_lite.objectives import LossSums, TextObjective
from flaxformer_lite.training import step
from flaxformer_lite.training.evaluate import evaluate
from tests.training import toy


@dataclasses.dataclass(frozen=True)
class Text(TextObjective, toy.NextToken):
    """The toy's loss under the names of text."""

    def loss(self, outputs, targets, *, chunks):
        sums = toy.NextToken.loss(self, outputs, targets, chunks=chunks)
        return LossSums(
            sums.loss,
            sums.weight,
            {**sums.metrics, "nll": (sums.loss["weights"], sums.weight["weights"])},
        )


class Data:
    """Three held-out targets: one of two bytes, two of one."""

    vocab_size = 3

    class tokenizer:
        pieces = staticmethod(lambda: [b"", b"a", b"bc"])

    def sample_targets(self, split):
        yield {"labels": np.int32([1, 2, 1, 0]), "weights": np.float32([1, 1, 1, 0])}


def test_each_target_counts_once_whatever_the_batches():
    params = toy.init()
    evaluate_step = jax.jit(step.eval_step(toy.features(toy.Toy()), Text(), chunks=1))
    whole = toy.batch(12)
    parts = [jax.tree.map(lambda x, at=at: x[at : at + 4], whole) for at in (0, 4, 8)]
    one, many = (
        evaluate(Text(), evaluate_step, params, batches, Data())[0] for batches in ([whole], parts)
    )
    assert one.keys() == many.keys() == {"loss", "nll", "accuracy", "perplexity", "bits_per_byte"}
    for name in one:
        np.testing.assert_allclose(one[name], many[name], rtol=1e-5)
    np.testing.assert_allclose(one["perplexity"], math.exp(one["loss"]), rtol=1e-6)
    np.testing.assert_allclose(one["bits_per_byte"], one["loss"] / math.log(2) / (4 / 3), rtol=1e-6)
