"""Updates that are left out because their loss or gradient is far above those before, or not
finite."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

WINDOW = 128  # updates that a value is compared with, from half as many on
SIGMAS = 6.0  # standard deviations above their mean from which on a loss is told as a spike


class Calm(NamedTuple):
    """The state of an optimizer that leaves out spikes.

    Attributes:
      inner: the optimizer's own state, as of the last update that was made.
      losses, norms: float32 [WINDOW], the loss and gradient norm of the last updates that were
        made; NaN before the first.
      left_out: int32 scalar, the number of updates that were not.
    """

    inner: Any
    losses: jax.Array
    norms: jax.Array
    left_out: jax.Array


def is_spike(past: Any, now: Any, sigmas: float, xp: Any = np) -> Any:
    """Returns whether a value is not finite, or above mean + sigmas * standard deviation of WINDOW
    values, NaN for none.

    Reference: the rule and its 128 steps and 6 standard deviations are those of OLMo-core's
      SkipStepOptimizer (2024).
    """
    known = xp.isfinite(past)
    count = known.sum(dtype=xp.float32)
    mean = xp.where(known, past, 0).sum() / xp.maximum(count, 1)
    spread = xp.sqrt(xp.where(known, xp.square(past - mean), 0).sum() / xp.maximum(count, 1))
    return ~xp.isfinite(now) | ((count >= WINDOW // 2) & (now > mean + sigmas * spread))


def leave_out(
    tx: optax.GradientTransformationExtraArgs, sigmas: float
) -> optax.GradientTransformationExtraArgs:
    """Makes no update, of weights or of the optimizer's state, at steps whose loss or gradient norm
    is a spike.

    The decision is made on the devices. Values of steps that were left out are not compared with
    later ones.

    Args:
      tx: the optimizer.
      sigmas: as in `is_spike`.

    Returns:
      An optimizer whose update also takes `loss` and `grad_norm`, float32 scalars of the whole
      batch.

    Reference: PaLM left out some 200 to 500 batches around each spike by hand, Chowdhery et al.
      (2022), section 5.1.
    """
    masked = optax.conditionally_mask(
        tx, lambda _, *, calm, **others: calm, forward_extra_args=True
    )

    def init(params: Any) -> Calm:
        nothing = jnp.full(WINDOW, jnp.nan, jnp.float32)
        return Calm(masked.init(params), nothing, nothing, jnp.zeros((), jnp.int32))

    def update(
        updates: Any, state: Calm, params: Any = None, *, loss: Any, grad_norm: Any, **more: Any
    ) -> Any:
        calm = ~(
            is_spike(state.losses, loss, sigmas, jnp)
            | is_spike(state.norms, grad_norm, sigmas, jnp)
        )
        updates, inner = masked.update(updates, state.inner, params, calm=calm, **more)

        def add(past: jax.Array, now: jax.Array) -> jax.Array:
            return jnp.where(calm, jnp.roll(past, 1).at[0].set(now), past)

        left_out = state.left_out + (~calm).astype(jnp.int32)
        return updates, Calm(inner, add(state.losses, loss), add(state.norms, grad_norm), left_out)

    return optax.GradientTransformationExtraArgs(init, update)


def left_out(opt_state: Any) -> jax.Array | None:
    """Returns how many updates an optimizer has left out, or None if it leaves out none."""
    return optax.tree.get(opt_state, "left_out")
