"""Schedule-free AdamW: Defazio et al. (2024), "The Road Less Scheduled" (arXiv:2405.15682).

`b1` interpolates between the two sequences of weights; there is no other momentum.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.config import ConfigError, OptimizerConfig
from flaxformer_lite.training.average import EmaState
from flaxformer_lite.training.optimizers import elementwise

WIDTH_POWERS = elementwise.WIDTH_POWERS


class ScheduleFreeState(NamedTuple):
    """The state of schedule-free training beside the average.

    Attributes:
      inner: the state of the chain of clip, direction, decay and rate.
      z: the weights that the chain updates, in float32.
      max_rate: float32 scalar, the largest rate so far.
      weight_sum: float32 scalar, the sum of the squares of `max_rate` over all steps.
    """

    inner: optax.OptState
    z: optax.Params
    max_rate: jax.Array
    weight_sum: jax.Array


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds Adam's direction without momentum.

    Raises:
      ConfigError: the schedule decays, `ema` is set as well, or b1 is 0.
    """
    if cfg.schedule != "constant":
        raise ConfigError(
            f"optimizer.schedule={cfg.schedule!r}, optimizer.name='schedule_free': its average"
            " replaces the schedule; set optimizer.schedule=constant, warmup_steps stay."
        )
    if cfg.ema:
        raise ConfigError(
            f"optimizer.ema={cfg.ema:g}, optimizer.name='schedule_free': it evaluates an average"
            " of its own; set optimizer.ema=0."
        )
    if not cfg.b1:
        raise ConfigError(
            "optimizer.b1=0, optimizer.name='schedule_free': the average would never be trained;"
            " set optimizer.b1=0.9."
        )
    return optax.scale_by_rms(cfg.b2, cfg.eps, eps_in_sqrt=False, bias_correction=True)


def wrap(
    cfg: OptimizerConfig,
    tx: optax.GradientTransformationExtraArgs,
    rate: Callable[[jax.Array], jax.Array],
    frozen: Callable[[optax.Params], optax.Params],
) -> optax.GradientTransformationExtraArgs:
    """Trains weights between those that the chain updates and their average.

    With the gradient at y, z <- z + update(y); x <- x + c (z - x); y = (1 - b1) z + b1 x, where c
    is the step's share in the sum of the squared rates. The model's weights are y; x is evaluated.
    Unlike in optax, x is a part of the state, so that it is not computed from rounded weights.

    Args:
      cfg: has b1.
      tx: the chain, whose updates include the rate.
      rate: the schedule.
      frozen: function from parameters to a tree of bools, True for those that never change.

    Returns:
      The optimizer, whose state is an `EmaState` around a `ScheduleFreeState`.
    """

    def init(params: optax.Params) -> EmaState:
        def copy(p: jax.Array, is_frozen: bool) -> jax.Array | optax.MaskedNode:
            if is_frozen:
                return optax.MaskedNode()
            # A copy, as a step donates its state, and two of its leaves must not share a buffer.
            return jnp.array(p, jnp.float32, copy=True)

        off = frozen(params)
        zero = jnp.zeros((), jnp.float32)
        z = jax.tree.map(copy, params, off)
        inner = ScheduleFreeState(tx.init(params), z, zero, zero)
        return EmaState(inner, jnp.zeros((), jnp.int32), jax.tree.map(copy, params, off))

    def update(
        updates: optax.Updates,
        state: EmaState,
        params: optax.Params | None = None,
        **more: jax.Array,
    ) -> tuple[optax.Updates, EmaState]:
        past = state.inner
        assert isinstance(past, ScheduleFreeState), "as init makes it"
        updates, inner = tx.update(updates, past.inner, params, **more)
        max_rate = jnp.maximum(past.max_rate, rate(state.steps))
        weight_sum = past.weight_sum + jnp.square(max_rate)
        share = jnp.square(max_rate) / weight_sum

        def move(update: jax.Array, z: Any) -> Any:
            if isinstance(z, optax.MaskedNode):
                return z
            return z + update

        def mean(update: jax.Array, x: Any, z: Any) -> Any:
            if isinstance(x, optax.MaskedNode):
                return x
            return x + share * (z - x)

        def change(update: jax.Array, y: jax.Array, x: Any, z: Any) -> jax.Array:
            if isinstance(x, optax.MaskedNode):
                return update
            return x + (1 - cfg.b1) * (z - x) - y

        z = jax.tree.map(move, updates, past.z)
        x = jax.tree.map(mean, updates, state.ema, z)
        changes = jax.tree.map(change, updates, params, x, z)
        now = ScheduleFreeState(inner, z, max_rate, weight_sum)
        return changes, EmaState(now, state.steps + 1, x)

    return optax.GradientTransformationExtraArgs(init, update)
