import types

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.objectives.sums import LossSums, token_loss, weight_sums
from flaxformer_lite.objectives.text.causal_lm import CausalLm


def test_terms_are_each_over_their_own_weight():
    loss = {"weights": jnp.float32(6), "pairs": jnp.float32(1)}
    sums = LossSums(loss, {"weights": jnp.float32(3), "pairs": jnp.float32(2)}, {})
    assert float(sums.mean()) == 6 / 3 + 1 / 2
    assert float(sums.mean({"weights": jnp.float32(12), "pairs": jnp.float32(4)})) == 6 / 12 + 1 / 4


def test_weights_are_the_floating_targets():
    targets = {"labels": jnp.ones((2, 3), jnp.int32), "weights": jnp.full((2, 3), 0.5)}
    targets["flag"] = jnp.ones(2, bool)
    assert {k: float(v) for k, v in weight_sums(targets).items()} == {"weights": 3.0}


def test_metrics_of_tokens_are_means_by_weight():
    """The second of the three tokens that count is wrong; the padded one is right."""
    logits_BTV = jnp.float32([[[3, 0, 0], [0, 2, 0], [0, 0, 1], [0, 0, 1]]])
    labels = jnp.asarray([[0, 0, 2, 2]])
    weights = jnp.float32([[1, 2, 0, 0.5]])
    features = types.SimpleNamespace(projection=DeferredLogits(logits_BTV, jnp.eye(3)))
    sums = token_loss(CausalLm(), features, {"labels": labels, "weights": weights}, 1)
    means = {name: float(total / weight) for name, (total, weight) in sums.metrics.items()}
    nll_T = np.log(np.exp(logits_BTV).sum(-1))[0] - np.float32([3, 0, 1, 1])
    assert means["accuracy"] == pytest.approx(1.5 / 3.5)
    due = float((nll_T * weights[0]).sum()) / 3.5
    assert means["nll"] == pytest.approx(due, rel=1e-6)
    assert float(sums.mean()) == pytest.approx(means["nll"], rel=1e-6)
