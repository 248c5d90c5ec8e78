"""The layer around every recurrent cell: input projection, scan, and the state as a cache.

In encoders it reads in both directions.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError, Execution, parts, rules
from flaxformer_lite.contrib.recurrent.cells import scan_cell
from flaxformer_lite.nn.functions.sharding import sharding_of
from flaxformer_lite.nn.mixers.recurrent import RecurrentState, begin_recurrence, finish_recurrence
from flaxformer_lite.nn.modules import cache as caches
from flaxformer_lite.nn.modules.cache import StateCache
from flaxformer_lite.nn.modules.context import Context, ContextLayer
from flaxformer_lite.nn.modules.documents import StateReader
from flaxformer_lite.nn.modules.einsum import Einsum


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(StateReader):
    """The record of a recurrent layer; a cell adds its class variables.

    Attributes:
      units: U, the numbers in a state; 0 is the model's width, and in an encoder half of it for
        each direction, so that the output is as wide as the model. Of another width, the output is
        projected back.
    """

    knows_order: ClassVar[bool] = True
    gates: ClassVar[int]  # Z
    states: ClassVar[int] = 1  # arrays in a state
    biases: ClassVar[tuple[float, ...]]  # initial values: of the gates, then of the step's `bias_U`
    step: ClassVar[Callable[..., RecurrentState]]  # of cells.py

    units: rules.Count = 0

    def width(self, d_model: int, *, causal: bool) -> int:
        """Returns U of one direction."""
        if not (causal or self.units) and d_model % 2:
            raise ConfigError(
                f"d_model={d_model}: is odd, and each direction of an encoder has half of it; set"
                " mixer.units."
            )
        if self.units:
            return self.units
        return d_model if causal else d_model // 2

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        return Recurrent(self, execution, causal, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        # Every step of the scan needs the whole recurrent kernel.
        directions = rf"{self.name}/(forward|backward)"
        rules: parts.PartitionRules = (
            (rf"{directions}/input/kernel$", ("fsdp", None, None)),
            (rf"{directions}/(kernel|bias)$", ()),
        )
        if self.units:
            rules += ((rf"{self.name}/out/kernel$", (None, "fsdp")),)
        return rules

    def init_cache(self, batch: int, length: int, d_model: int, dtype: DTypeLike) -> StateCache:
        return caches.empty_state(
            [self.width(d_model, causal=True)] * self.states, batch, length, dtype
        )


class Recurrent(ContextLayer):
    """Reads from left to right with a state or, in an encoder, in both directions.

    The outputs of both directions are concatenated.

    The output of a direction at token t is its state after t; at padding, that after the token
    before. Outside a stack the mask is read here (see `Context.prepared`).

    Reference: Schuster and Paliwal 1997, "Bidirectional Recurrent Neural Networks".
    """

    cfg: RecurrentConfig
    execution: Execution = Execution()
    causal: bool = False  # whether to read from left to right only

    @nn.compact
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: StateCache | None
    ) -> tuple[jax.Array, StateCache | None]:
        cfg = self.cfg
        run = self.execution
        d_model = x_BTD.shape[-1]
        units = cfg.width(d_model, causal=self.causal)
        x_BTD, context, state = begin_recurrence(
            cfg, run, x_BTD, context, cache, [units] * cfg.states, causal=self.causal
        )
        y_BTU, last = Direction(cfg, run, units, name="forward")(x_BTD, state, context)
        if not self.causal:
            back_BTU, _ = Direction(cfg, run, units, reverse=True, name="backward")(
                x_BTD, state, context
            )
            y_BTU = jnp.concatenate([y_BTU, back_BTU], axis=-1)
        if cfg.units:
            sizes = {"U": y_BTU.shape[-1], "D": d_model}
            y_BTU = Einsum(
                "BTU,UD->BTD", sizes, initial=cfg.initial, execution=run, residual=True, name="out"
            )(y_BTU)
        return finish_recurrence(y_BTU, context, cache, last)


class Direction(nn.Module):
    """One direction of a recurrent layer."""

    cfg: RecurrentConfig
    execution: Execution
    units: int
    reverse: bool = False

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, state: RecurrentState, context: Context
    ) -> tuple[jax.Array, RecurrentState]:
        """Returns the outputs [B, T, U] and the last state."""
        gates_BTZU, step = declare_cell(self, self.cfg, self.execution, self.units, x_BTD)
        return read_tokens(self.execution, step, state, gates_BTZU, context, reverse=self.reverse)


def declare_cell(
    module: nn.Module, cfg: RecurrentConfig, execution: Execution, units: int, x_BTD: jax.Array
) -> tuple[jax.Array, Callable[[RecurrentState, jax.Array], RecurrentState]]:
    """Declares a cell's weights in a module that is being called.

    Returns the gates [B, T, Z, U] of x, and the step.
    """
    dtype = jnp.dtype(execution.param_dtype)
    sizes = {"D": x_BTD.shape[-1], "Z": cfg.gates, "U": units}
    gates_BTZU = Einsum(
        "BTD,DZU->BTZU", sizes, initial=cfg.initial, execution=execution, name="input"
    )(x_BTD)
    kernel_UZU = module.param("kernel", _orthogonal, (units, cfg.gates, units), dtype).astype(
        x_BTD.dtype
    )
    initial_ZU = np.broadcast_to(np.asarray(cfg.biases, dtype)[:, None], (len(cfg.biases), units))
    bias_ZU = module.param("bias", lambda _: jnp.asarray(initial_ZU)).astype(x_BTD.dtype)
    more = {}
    if len(cfg.biases) > cfg.gates:
        more["bias_U"] = bias_ZU[cfg.gates]
    step = jax.tree_util.Partial(type(cfg).step, kernel_UZU=kernel_UZU, **more)
    return gates_BTZU + bias_ZU[None, None, : cfg.gates], step


def read_tokens(
    execution: Execution,
    step: Callable[[RecurrentState, jax.Array], RecurrentState],
    state: RecurrentState,
    gates_BTZU: jax.Array,
    context: Context,
    *,
    reverse: bool = False,
) -> tuple[jax.Array, RecurrentState]:
    """Runs a cell over the documents of a batch; returns the outputs [B, T, U] and the last state.

    On a mesh it is split by hand over the batch, so that devices add their gradients of the weights
    once, not at every token.
    """
    read = sharding_of(execution).per_shard(
        functools.partial(scan_cell, reverse=reverse), ("", "BU", "BTZU", "BT", "BT"), ("BTU", "BU")
    )
    return read(step, state, gates_BTZU, context.starts_BT, context.keep_BT)


def _orthogonal(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Draws an orthogonal matrix for each gate.

    It keeps the norm of a state over many steps (Saxe et al. 2014).
    """
    units, gates, _ = shape
    draw = nn.initializers.orthogonal()
    drawn = [draw(one, (units, units), dtype) for one in jax.random.split(key, gates)]
    return jnp.stack(drawn, axis=1)
