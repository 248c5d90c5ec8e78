"""An exponential moving average of the weights, which is evaluated and published."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.training.spikes import skip_count
from flaxformer_lite.training.state import TrainState
from flaxformer_lite.types import Params


class EmaState(NamedTuple):
    """The state of an optimizer that keeps an exponential moving average of the weights.

    Attributes:
      inner: the optimizer's own state.
      steps: int32 scalar, the number of weights averaged.
      ema: their average in float32, without frozen parameters; zeros before the first step.
    """

    inner: optax.OptState
    steps: jax.Array
    ema: optax.Params


def with_average(
    tx: optax.GradientTransformationExtraArgs,
    decay: float,
    frozen: Callable[[optax.Params], optax.Params],
) -> optax.GradientTransformationExtraArgs:
    """Adds an exponential moving average of the weights to an optimizer.

    After step t, with weights p and decay d, the average is e <- e + (1 - d) / (1 - d^t) (p - e),
    the mean of p_1 .. p_t with weights d^(t - i). Unlike the plain recursion e <- d e + (1 - d) p,
    it is not biased towards the initial weights. Skipped updates (spikes.py) do not count as steps.

    Args:
      tx: the optimizer.
      decay: d, between 0 and 1.
      frozen: function from parameters to a tree of bools, True for those that never change.

    Returns:
      The optimizer, whose state is an `EmaState`.

    Reference: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging" (1992);
    for the bias, Kingma and Ba, "Adam" (2015), section 3 (arXiv:1412.6980).
    """

    def init(params: optax.Params) -> EmaState:
        def zero(p, off):
            if off:
                return optax.MaskedNode()
            # float32, as 1 - d is often less than the precision of bfloat16. The first step's share
            # is 1, so that the zeros never count.
            return jnp.zeros(p.shape, jnp.float32)

        zeros = jax.tree.map(zero, params, frozen(params))
        return EmaState(tx.init(params), jnp.zeros((), jnp.int32), zeros)

    def update(
        updates: optax.Updates,
        state: EmaState,
        params: optax.Params | None = None,
        **more: jax.Array,
    ) -> tuple[optax.Updates, EmaState]:
        updates, inner = tx.update(updates, state.inner, params, **more)
        before = skip_count(state.inner)
        after = skip_count(inner)
        skipped = None
        if before is None or after is None:
            steps = state.steps + 1
            counted = steps
        else:
            skipped = after > before
            steps = state.steps + (~skipped).astype(jnp.int32)
            # The first updates may be skipped, and a count of zero would divide by zero.
            counted = jnp.maximum(steps, 1)
        # expm1 avoids the cancellation in 1 - d^t.
        share = (decay - 1) / jnp.expm1(counted.astype(jnp.float32) * math.log(decay))
        if skipped is not None:
            # A skipped step adds nothing, except at the start, where its weights are the average.
            share = jnp.where(skipped & (steps > 0), 0.0, share)

        def add(new, ema):
            if isinstance(ema, optax.MaskedNode):
                return ema
            return ema + share * (new.astype(jnp.float32) - ema)

        with jax.numpy_dtype_promotion("standard"):  # as in step.py
            new = optax.apply_updates(params, updates)
        return updates, EmaState(inner, steps, jax.tree.map(add, new, state.ema))

    return optax.GradientTransformationExtraArgs(init, update)


def evaluated_params(state: TrainState) -> Params:
    """Returns the parameters to evaluate and publish: the average if it is kept, else the last.

    Args:
      state: a train state after at least one step.
    """
    if not isinstance(state.opt_state, EmaState):
        return state.params
    ema = state.opt_state.ema

    def averaged(p, e):
        if isinstance(e, optax.MaskedNode):
            return p
        return e.astype(p.dtype)

    return jax.tree.map(averaged, state.params, ema)
