"""A step of training computes the same for every way of splitting and running it."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flaxformer_lite.contrib.verify.finding import Finding, compare, is_float
from flaxformer_lite.contrib.verify.subject import Outputs, Subject, token_losses
from flaxformer_lite.nn.modules.layout import unstack_layers
from flaxformer_lite.objectives.sums import TOKENS, LossSums, sum_weighted
from flaxformer_lite.training.state import create
from flaxformer_lite.training.step import train_step
from flaxformer_lite.types import Arrays


class TokenLoss:
    """An objective: a smooth function of each token's outputs, by the weights of the tokens."""

    def loss(self, outputs: Outputs, targets: Arrays, *, chunks: int) -> LossSums:
        return sum_weighted(token_losses(outputs), targets[TOKENS])

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        return {}


def check_accumulation(subject: Subject) -> Iterator[Finding]:
    """The gradients of microbatches and of a ragged last batch are those of its rows at once."""
    lengths = np.array([12, 9, 6, 0])  # the last row only fills the batch
    keep = np.arange(subject.length) < lengths[:, None]
    inputs = subject.inputs(subject.draw(len(keep)))
    rows = jax.tree.map(lambda x: x[:-1], inputs)
    _, gradients = subject.gradients(rows, keep[:-1])
    due = jax.tree.map(lambda x: x / keep.sum() if is_float(x) else x, gradients)
    tx = optax.trace(decay=0.0)  # which keeps the gradients
    step = train_step(
        lambda params, inputs, key: (subject.apply(params, inputs), {}),
        TokenLoss(),
        tx,
        lambda step: jnp.float32(0),
        dropout_key=None,
        accumulate=2,
        chunks=1,
    )
    state = create(lambda: subject.params, tx)
    batch = {"inputs": inputs, "targets": {TOKENS: keep.astype(np.float32)}}
    got = jax.jit(step)(state, batch)[0].opt_state.trace
    yield compare("accumulation", got, due, "the fourth row of the batch is empty")


def check_scan(subject: Subject) -> Iterator[Finding]:
    """A scanned stack that recomputes its layers has the plain stack's outputs and gradients."""
    plain = subject.with_config(scan=False)
    other = subject.with_config(scan=True, remat="full")
    inputs = subject.inputs(subject.draw(2))
    keep = np.ones(inputs[subject.written].shape, bool)
    due, due_gradients = plain.gradients(inputs, keep)
    got, gradients = other.gradients(inputs, keep)
    yield compare("scan and remat: outputs", got, due)
    yield compare("scan and remat: gradients", unstack_layers(gradients), due_gradients)
