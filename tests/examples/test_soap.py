"""SOAP, written outside the package, beside a plain transcription of the paper's algorithms."""

import jax
import numpy as np
import pytest

from examples import soap
from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.training import optimizer
from tests.examples import trials

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
PLAIN = {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0, "clip_norm": 0.0}
STEPS = 2 * soap.EVERY + 3


def reference(gradients, b1, b2, eps):
    """Returns the direction of each step (algorithm 3), after one that finds the eigenvectors."""
    rows, columns = gradients[0].shape
    q_left = np.eye(rows)
    q_right = np.eye(columns)
    left = right = m = v = 0.0
    directions = [np.zeros((rows, columns))]
    for step, g in enumerate(gradients):
        if step:
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * (q_left.T @ g @ q_right) ** 2
            unbiased = m / (1 - b1**step)
            scale = np.sqrt(v / (1 - b2**step)) + eps
            directions.append(q_left @ ((q_left.T @ unbiased @ q_right) / scale) @ q_right.T)
        left = b2 * left + (1 - b2) * g @ g.T
        right = b2 * right + (1 - b2) * g.T @ g
        if step == 0:
            q_left = np.linalg.eigh(left)[1][:, ::-1]
            q_right = np.linalg.eigh(right)[1][:, ::-1]
        elif step % soap.EVERY == 0:  # algorithm 4
            q_left = np.linalg.qr(left @ q_left)[0]
            q_right = np.linalg.qr(right @ q_right)[0]
    return directions


def test_each_matrix_takes_the_steps_of_the_paper():
    """Square gradients, as the eigenvectors of a product without full rank are undetermined."""
    draws = np.random.default_rng(0).standard_normal((STEPS, 2, 4, 2, 2))
    cfg = OptimizerConfig(name="examples.soap:make", learning_rate=1.0, b2=0.9, **PLAIN)
    tx = optimizer.build(cfg, STEPS)

    @jax.jit
    def run(gradients):
        first = {"layers": {"query": {"kernel": gradients[0]}}}

        def body(state, gradient):
            grads = {"layers": {"query": {"kernel": gradient}}}
            updates, state = tx.update(grads, state, grads)
            return state, updates["layers"]["query"]["kernel"]

        return jax.lax.scan(body, tx.init(first), gradients)[1]

    found = run(draws.astype(np.float32)).reshape(STEPS, 2, 4, 4)
    for layer in range(2):
        expected = reference(list(draws[:, layer].reshape(STEPS, 4, 4)), cfg.b1, cfg.b2, cfg.eps)
        np.testing.assert_allclose(-found[:, layer], expected, rtol=1e-3, atol=1e-4)


def test_a_side_that_is_too_long_keeps_its_axes(monkeypatch):
    monkeypatch.setattr(soap, "WIDEST", 3)
    tx = soap.make(OptimizerConfig(name="examples.soap:make"))
    params = {"up": {"kernel": np.ones((2, 5), np.float32)}}
    state = jax.eval_shape(tx.init, params)
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(state) if len(leaf.shape) == 3)
    assert shapes == [(1, 2, 2), (1, 2, 2), (1, 2, 5), (1, 2, 5)]


@pytest.mark.nightly  # each matrix takes the steps of the paper
def test_it_trains_as_a_user_starts_it(tmp_path):
    _, records = trials.train(tmp_path, **{"optimizer.name": "examples.soap:make"})
    assert records[-1]["loss"] < records[0]["loss"]
