"""Skips updates whose loss or gradient norm is a spike or not finite."""

from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from flaxformer_lite.types import Array

WINDOW_UPDATES = 128  # updates that a value is compared with; half as many are needed
SPIKE_DEVIATIONS = (
    6.0  # standard deviations above their mean from which on a loss is reported as a spike
)


class SpikeSkipState(NamedTuple):
    """The state of an optimizer that skips spikes.

    Attributes:
      inner: the optimizer's own state after the last update that was applied.
      losses, norms: float32 [WINDOW_UPDATES], the loss and gradient norm of the last applied
        updates; NaN before the first.
      left_out: int32 scalar, the number of skipped updates.
    """

    inner: optax.OptState
    losses: jax.Array
    norms: jax.Array
    left_out: jax.Array


def is_spike(past: Array, now: ArrayLike, sigmas: float, xp: ModuleType = np) -> Array:
    """Returns whether a value is a spike: not finite, or above mean + sigmas * standard deviation.

    Args:
      past: the WINDOW_UPDATES values before; NaN for none.
      now: the value.
      sigmas: the number of standard deviations.
      xp: numpy or jax.numpy.

    Reference: the rule and its 128 steps and 6 standard deviations are those of OLMo-core's
      SkipStepOptimizer (2024).
    """
    known = xp.isfinite(past)
    count = known.sum(dtype=xp.float32)
    mean = xp.where(known, past, 0).sum() / xp.maximum(count, 1)
    # In two passes: in float32, the mean of squares minus the squared mean would cancel for a loss
    # that hardly moves.
    spread = xp.sqrt(xp.where(known, xp.square(past - mean), 0).sum() / xp.maximum(count, 1))
    return ~xp.isfinite(now) | ((count >= WINDOW_UPDATES // 2) & (now > mean + sigmas * spread))


def skip_spikes(
    tx: optax.GradientTransformationExtraArgs, sigmas: float
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer to skip updates at steps whose loss or gradient norm is a spike.

    A skipped step changes neither the weights nor the optimizer's state, and later steps are not
    compared with its values. The decision is made on the devices.

    Args:
      tx: the optimizer.
      sigmas: as in `is_spike`.

    Returns:
      An optimizer whose update also takes `loss` and `grad_norm`, float32 scalars of the whole
      batch.

    Reference: PaLM skipped some 200 to 500 batches around each spike by hand, Chowdhery et al.
      (2022), section 5.1.
    """
    masked = optax.conditionally_mask(
        tx, lambda _, *, applied, **others: applied, forward_extra_args=True
    )

    def init(params: optax.Params) -> SpikeSkipState:
        # NaN, as `is_spike` counts only finite values as known.
        nothing = jnp.full(WINDOW_UPDATES, jnp.nan, jnp.float32)
        return SpikeSkipState(masked.init(params), nothing, nothing, jnp.zeros((), jnp.int32))

    def update(
        updates: optax.Updates,
        state: SpikeSkipState,
        params: optax.Params | None = None,
        *,
        loss: jax.Array,
        grad_norm: jax.Array,
        **more: jax.Array,
    ) -> tuple[optax.Updates, SpikeSkipState]:
        loss_spikes = is_spike(state.losses, loss, sigmas, jnp)
        norm_spikes = is_spike(state.norms, grad_norm, sigmas, jnp)
        applied = ~(loss_spikes | norm_spikes)
        updates, inner = masked.update(updates, state.inner, params, applied=applied, **more)

        def add(past: jax.Array, now: jax.Array) -> jax.Array:
            return jnp.where(applied, jnp.roll(past, 1).at[0].set(now), past)

        new_state = SpikeSkipState(
            inner=inner,
            losses=add(state.losses, loss),
            norms=add(state.norms, grad_norm),
            left_out=state.left_out + (~applied).astype(jnp.int32),
        )
        return updates, new_state

    return optax.GradientTransformationExtraArgs(init, update)


def skip_count(opt_state: optax.OptState) -> jax.Array | None:
    """Returns the number of updates that an optimizer has skipped; None if it never skips any."""
    return optax.tree.get(opt_state, "left_out")
