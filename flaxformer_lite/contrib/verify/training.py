"""A step of training computes the same for every way of splitting and running it."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flaxformer_lite.contrib.verify.finding import ROUNDING, Finding, tree_difference
from flaxformer_lite.contrib.verify.subject import Outputs, Subject, of_tokens
from flaxformer_lite.nn.functions.losses import cross_entropy
from flaxformer_lite.objectives.sums import TOKENS, LossSums, Projected, sum_weighted
from flaxformer_lite.training.state import create
from flaxformer_lite.training.step import train_step
from flaxformer_lite.types import Arrays

ROWS = 4  # of unequal lengths


class TokenLoss:
    """The cross entropy of tokens; of a model without a vocabulary, a smooth function of states."""

    def loss(self, outputs: Outputs | Projected, targets: Arrays, *, chunks: int) -> LossSums:
        weights = targets[TOKENS]
        if isinstance(outputs, dict):
            total = jnp.zeros(weights.shape, jnp.float32)
            for value in of_tokens(outputs).values():
                total += jnp.sin(value.reshape(*weights.shape, -1)).sum(axis=-1)
            return sum_weighted(total, weights)
        entropy = cross_entropy(outputs.projection, targets["labels"], weights, chunks=chunks)
        return LossSums({TOKENS: entropy.loss_sum}, {TOKENS: entropy.weight_sum}, {})

    def metrics(self, sums: LossSums) -> dict[str, jax.Array]:
        return {"loss": sums.mean()}

    def predictions(self, outputs: Outputs | Projected) -> dict[str, jax.Array]:
        return {}


def check_accumulation(subject: Subject) -> Iterator[Finding]:
    """The gradients of microbatches and of a ragged last batch are those of its rows at once."""
    ids = subject.draw(ROWS)
    weights = (np.arange(ids.shape[1]) < 3 * np.arange(ROWS, 0, -1)[:, None]).astype(np.float32)
    weights[-1] = 0  # a row that only fills the batch
    inputs = subject.inputs(ids)
    targets = {TOKENS: weights, "labels": np.roll(ids, -1, axis=1)}
    loss = TokenLoss()

    def outputs(params, inputs, key):
        if subject.is_family and subject.cfg.head in subject.model.vocab_heads:
            return subject.model.apply({"params": params}, **inputs, method="features"), {}
        return subject.apply(params, inputs), {}

    def whole(params, batch):
        sums = loss.loss(outputs(params, batch["inputs"], None)[0], batch["targets"], chunks=1)
        return sums.loss[TOKENS] / batch["targets"][TOKENS].sum()

    batch = {"inputs": inputs, "targets": targets}
    rows = jax.tree.map(lambda x: x[:-1], batch)
    due = jax.jit(jax.grad(whole, allow_int=True))(subject.params, rows)
    tx = optax.trace(decay=0.0)  # which keeps the gradients
    step = train_step(
        outputs, loss, tx, lambda step: jnp.float32(0), dropout_key=None, accumulate=2, chunks=2
    )
    state = create(lambda: subject.params, tx)
    got = jax.jit(step)(state, batch)[0].opt_state.trace
    known = subject.known_reasons or ("the fourth row of the batch is empty",)
    yield Finding("accumulation", tree_difference(got, due), ROUNDING, *known)


def check_scan(subject: Subject) -> Iterator[Finding]:
    """A scanned stack that recomputes its layers has the plain stack's outputs and gradients."""
    plain = subject.with_config({"scan": False})
    other = subject.with_config({"scan": True, "remat": "full"})
    inputs = subject.inputs(subject.draw(2))
    keep = np.ones(next(iter(inputs.values())).shape, bool)
    due, due_gradients = plain.gradients(inputs, keep)
    got, gradients = other.gradients(inputs, keep)
    values = tree_difference(got, due)
    yield Finding("scan and remat: outputs", values, ROUNDING)
    got_layers = other.by_layer(gradients)
    layers = plain.by_layer(due_gradients)
    ordered = {path: got_layers[path] for path in layers}
    yield Finding("scan and remat: gradients", tree_difference(ordered, layers), ROUNDING)
