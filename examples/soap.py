"""SOAP, an optimizer written outside the package: Adam in the eigenvectors of Shampoo's matrices.

    flaxformer_lite train --config=gpt2_tiny --workdir=runs/soap
    --config.optimizer.name=examples.soap:make --config.optimizer.b1=0.95 --config.optimizer.b2=0.95

Each matrix of a hidden layer keeps means of G G^T and G^T G; Adam's second moment is that of the
gradient turned into their eigenvectors. Adam updates all other parameters.

It is no file of training/optimizers: gradients of few tokens leave eigenvectors undetermined, so
that rounding decides them and another mesh takes another way; and each device holds the square
matrices whole.

Reference: Vyas et al. 2024, "SOAP: Improving and Stabilizing Shampoo using Adam"
  (arXiv:2409.11321), algorithms 3 and 4.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.training.optimizers import hidden_matrices

EVERY = 10  # steps from one set of eigenvectors to the next
WIDEST = 10_000  # a side that is longer keeps its axes


class Side(NamedTuple):
    """One side of N matrices, of size A.

    Attributes:
      mean: [N, A, A], the mean of the products of the gradients with themselves.
      basis: [N, A, A], an eigenvector of it in each column.
    """

    mean: jax.Array
    basis: jax.Array


class Matrix(NamedTuple):
    """The state of N matrices.

    Attributes:
      m: [N, A, B], the mean of the gradients.
      v: [N, A, B], the mean of the squares of the turned gradients.
      sides: of the inputs and of the outputs; None for a side that keeps its axes.
    """

    m: jax.Array
    v: jax.Array
    sides: tuple[Side | None, Side | None]


class SoapState(NamedTuple):
    steps: jax.Array
    matrices: optax.Params


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds SOAP for the matrices of hidden layers, and Adam for all else."""
    return hidden_matrices.split(scale_by_soap(cfg), hidden_matrices.adam(cfg))


def scale_by_soap(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds SOAP's direction; the first step only finds the eigenvectors."""

    def init(params: optax.Params) -> SoapState:
        def first(p_NAB: jax.Array) -> Matrix:
            zero = jnp.zeros_like(p_NAB)
            count, *sizes = p_NAB.shape
            sides = [None if size > WIDEST else _first_side(count, size) for size in sizes]
            return Matrix(zero, zero, tuple(sides))

        return SoapState(jnp.zeros((), jnp.int32), jax.tree.map(first, _as_matrices(params)))

    def update(
        updates: optax.Updates, state: SoapState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, SoapState]:
        gradients, structure = jax.tree.flatten(_as_matrices(updates))
        matrices = structure.flatten_up_to(state.matrices)
        steps = [_step(cfg, state.steps, g, s) for g, s in zip(gradients, matrices, strict=True)]
        directions = jax.tree.unflatten(structure, [direction for direction, _ in steps])
        after = jax.tree.unflatten(structure, [matrix for _, matrix in steps])
        directions = jax.tree.map(lambda x, like: x.reshape(like.shape), directions, updates)
        return directions, SoapState(state.steps + 1, after)

    return optax.GradientTransformation(init, update)


def _step(
    cfg: OptimizerConfig, count: jax.Array, g_NAB: jax.Array, past: Matrix
) -> tuple[jax.Array, Matrix]:
    started = count > 0
    turned = _turn(g_NAB, past.sides)
    m = jnp.where(started, cfg.b1 * past.m + (1 - cfg.b1) * g_NAB, past.m)
    v = jnp.where(started, cfg.b2 * past.v + (1 - cfg.b2) * jnp.square(turned), past.v)
    updates_so_far = jnp.maximum(count, 1)
    m_hat = _turn(m, past.sides) / (1 - cfg.b1**updates_so_far)
    v_hat = v / (1 - cfg.b2**updates_so_far)
    direction = _turn_back(m_hat / (jnp.sqrt(v_hat) + cfg.eps), past.sides)
    products = (
        jnp.einsum("nab,ncb->nac", g_NAB, g_NAB),
        jnp.einsum("nab,nac->nbc", g_NAB, g_NAB),
    )
    sides = tuple(
        side and _next_side(cfg, count, side, product)
        for side, product in zip(past.sides, products, strict=True)
    )
    return direction, Matrix(m, v, sides)


def _first_side(count: int, size: int) -> Side:
    shape = (count, size, size)
    return Side(jnp.zeros(shape), jnp.broadcast_to(jnp.eye(size), shape))


def _next_side(cfg: OptimizerConfig, count: jax.Array, past: Side, product: jax.Array) -> Side:
    mean = cfg.b2 * past.mean + (1 - cfg.b2) * product

    def exact() -> jax.Array:
        return jnp.flip(jnp.linalg.eigh(mean)[1], axis=-1)  # the largest eigenvalue first

    def power() -> jax.Array:
        return jnp.linalg.qr(mean @ past.basis)[0]

    index = jnp.where(count == 0, 0, jnp.where(count % EVERY == 0, 1, 2))
    return Side(mean, jax.lax.switch(index, (exact, power, lambda: past.basis)))


def _turn(x_NAB: jax.Array, sides: tuple[Side | None, Side | None]) -> jax.Array:
    left, right = sides
    if left:
        x_NAB = jnp.einsum("nai,nab->nib", left.basis, x_NAB)
    if right:
        x_NAB = jnp.einsum("nab,nbj->naj", x_NAB, right.basis)
    return x_NAB


def _turn_back(x_NAB: jax.Array, sides: tuple[Side | None, Side | None]) -> jax.Array:
    left, right = sides
    if left:
        x_NAB = jnp.einsum("nai,nib->nab", left.basis, x_NAB)
    if right:
        x_NAB = jnp.einsum("naj,nbj->nab", x_NAB, right.basis)
    return x_NAB


def _as_matrices(params: optax.Params) -> optax.Params:
    """Reshapes each parameter to [N, A, B]: layers and experts, inputs, outputs."""
    numbers = hidden_matrices.dimension_numbers(params)

    def reshape(p: jax.Array, numbers: contrib.MuonDimensionNumbers) -> jax.Array:
        return p.reshape(-1, *hidden_matrices.fans(p, numbers))

    return jax.tree.map(reshape, params, numbers)
