import math

import jax
import numpy as np

from flaxformer_lite.training import step
from flaxformer_lite.training.evaluate import evaluate
from tests.training import toy


def test_each_target_counts_once_whatever_the_batches():
    params = toy.init()
    evaluate_step = jax.jit(step.eval_step(toy.features(toy.Toy()), toy.NextToken(), chunks=1))
    whole = toy.batch(12)
    parts = [jax.tree.map(lambda x, at=at: x[at : at + 4], whole) for at in (0, 4, 8)]
    one = evaluate(evaluate_step, params, [whole], 2.0)
    many = evaluate(evaluate_step, params, parts, 2.0)
    assert one.keys() == many.keys() == {"loss", "accuracy", "perplexity", "bits_per_byte"}
    for name in one:
        np.testing.assert_allclose(one[name], many[name], rtol=1e-5)
    np.testing.assert_allclose(one["perplexity"], math.exp(one["loss"]), rtol=1e-6)
    np.testing.assert_allclose(one["bits_per_byte"], one["loss"] / math.log(2) / 2, rtol=1e-6)
