"""The layer around every recurrent cell: input projection, scan, both directions in encoders, the state as a cache."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError, Execution, InitConfig, parts, rules
from flaxformer_lite.functions.recurrent import State, scan_cell
from flaxformer_lite.modules import cache as caches
from flaxformer_lite.modules.cache import StateCache
from flaxformer_lite.modules.context import Context, with_options
from flaxformer_lite.modules.documents import with_documents
from flaxformer_lite.modules.einsum import Einsum
from flaxformer_lite.modules.sharding import sharding_of


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(parts.MixerConfig):
    """The record of a recurrent layer; a cell adds its class variables.

    Attributes:
      units: U, the numbers in a state; 0 is the model's width, and in an encoder half of it for each direction, so that
        the output is as wide as the model. Of another width, the output is projected back.
      initial: initialization of the input's weights; in a model, the model's.
    """

    gates: ClassVar[int]  # Z
    states: ClassVar[int] = 1  # arrays in a state
    biases: ClassVar[tuple[float, ...]]  # initial values: of the gates, then of arguments of the step
    step: ClassVar[Callable[..., State]]  # of functions/recurrent.py

    units: rules.Count = 0
    initial: InitConfig = field(default_factory=InitConfig, metadata={"internal": True})

    def for_model(self, standard: parts.Part) -> Self:
        if window := getattr(standard, "window", 0):
            raise ConfigError(f"windows, {window} in a layer with mixer.name={self.name!r}: a recurrent layer reads all that"
                              f" comes before; give it window=0.")  # fmt: skip
        return replace(self, initial=getattr(standard, "initial", self.initial))

    def width(self, d_model: int, *, causal: bool) -> int:
        """Returns U of one direction."""
        if not (causal or self.units) and d_model % 2:
            raise ConfigError(
                f"d_model={d_model}: is odd, and each direction of an encoder has half of it; set mixer.units."
            )
        return self.units or (d_model if causal else d_model // 2)

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> "Recurrent":
        return Recurrent(self, execution, causal, name=name)

    def partition_rules(self) -> parts.Rules:
        # Every step of the scan needs the whole recurrent kernel.
        directions = rf"{self.name}/(forward|backward)"
        return ((rf"{directions}/input/kernel$", ("fsdp", None, None)), (rf"{directions}/(kernel|bias)$", ()),
                *(((rf"{self.name}/out/kernel$", (None, "fsdp")),) if self.units else ()))  # fmt: skip

    def init_cache(self, batch: int, length: int, d_model: int, dtype: DTypeLike) -> StateCache:
        return caches.empty_state([self.width(d_model, causal=True)] * self.states, batch, length, dtype)

    def prepare(
        self, context: Context, x_BTD: jax.Array, execution: Execution, *, causal: bool, tables: Callable[..., Any]
    ) -> Context:
        """Reads documents and padding off the mask, once for all layers."""
        return with_documents(context, x_BTD, causal=causal)


class Recurrent(nn.Module):
    """Reads from left to right with a state or, in an encoder, both ways, with the outputs side by side.

    The output of direction d at token t is its state after t; at padding, that after the token before. Outside a stack
    the mask is read here (see `Context.prepared`).

    Reference: Schuster and Paliwal 1997, "Bidirectional Recurrent Neural Networks".
    """

    cfg: RecurrentConfig
    execution: Execution = Execution()
    causal: bool = False  # whether to read from left to right only

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, context: Context | None = None, cache: StateCache | None = None, *, mask: Any = None
    ) -> Any:
        """Returns y [B, T, D], or (y, cache) if a cache was passed."""
        cfg, run, d_model = self.cfg, self.execution, x_BTD.shape[-1]
        context = with_options(context, x_BTD, cache, mask=mask)
        if (parts := sharding_of(run).num_shards("T").count) > 1:
            raise ConfigError(f"mesh.context={parts}: splits the sequence, which a recurrent layer ({cfg.name}) reads token by"
                              f" token; set mesh.context=1 and a larger mesh.data.")  # fmt: skip
        if not context.prepared:
            context = with_documents(context, x_BTD, causal=self.causal)
        units = cfg.width(d_model, causal=self.causal)
        state = zeros = (jnp.zeros((x_BTD.shape[0], units), x_BTD.dtype),) * cfg.states
        if cache is not None:
            x_BTD, state = self._continue(x_BTD, zeros, context, cache)
        read = functools.partial(Direction, cfg, run, units)
        y_BTU, state = read(name="forward")(x_BTD, state, context)
        if not self.causal:
            back_BTU, _ = read(reverse=True, name="backward")(x_BTD, zeros, context)
            y_BTU = jnp.concatenate([y_BTU, back_BTU], axis=-1)
        if cfg.units:
            sizes = {"U": y_BTU.shape[-1], "D": d_model}
            y_BTU = Einsum("BTU,UD->BTD", sizes, False, cfg.initial, run, True, name="out")(y_BTU)
        if cache is None:
            return y_BTU
        start = caches.start_of(cache, context.index, first=context.first)
        return y_BTU, cache.replace(state=state, length=jnp.asarray(start + x_BTD.shape[1], jnp.int32))

    def _continue(self, x_BTD: jax.Array, zeros: State, context: Context, cache: StateCache) -> tuple[jax.Array, State]:
        """Returns the input, checked, and the state to start from: the cache's, or zeros in slot 0."""
        if not self.causal:
            raise ConfigError("cache: an encoder's recurrent layer reads both ways, and cannot continue; leave it out.")
        index = caches.start_of(cache, context.index, first=context.first)
        if not context.prepared or not isinstance(cache, StateCache):
            x_BTD = caches.check_layer(x_BTD, cache, context.index, first=context.first, kind=StateCache)
        if context.first:
            return x_BTD, zeros
        return x_BTD, jax.tree.map(lambda zero, held: jnp.where(index == 0, zero, held), zeros, cache.state)


class Direction(nn.Module):
    """One direction of a recurrent layer."""

    cfg: RecurrentConfig
    execution: Execution
    units: int
    reverse: bool = False

    @nn.compact
    def __call__(self, x_BTD: jax.Array, state: State, context: Context) -> tuple[jax.Array, State]:
        """Returns the outputs [B, T, U] and the last state."""
        cfg, dtype = self.cfg, jnp.dtype(self.execution.param_dtype)
        sizes = {"D": x_BTD.shape[-1], "Z": cfg.gates, "U": self.units}
        gates_BTZU = Einsum("BTD,DZU->BTZU", sizes, False, cfg.initial, self.execution, name="input")(x_BTD)
        kernel_UZU = self.param("kernel", _orthogonal, (self.units, cfg.gates, self.units), dtype).astype(x_BTD.dtype)
        bias_ZU = self.param("bias", lambda _, shape: jnp.broadcast_to(jnp.asarray(cfg.biases, dtype)[:, None], shape),
                             (len(cfg.biases), self.units)).astype(x_BTD.dtype)  # fmt: skip

        def step(state: State, gates_BZU: jax.Array) -> State:
            return type(cfg).step(state, gates_BZU, kernel_UZU, *bias_ZU[cfg.gates :])

        gates_BTZU += bias_ZU[None, None, : cfg.gates]
        return scan_cell(
            step, state, gates_BTZU, starts_BT=context.starts_BT, keep_BT=context.keep_BT, reverse=self.reverse
        )


def _orthogonal(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Draws an orthogonal matrix for each gate, which keeps the length of a state over many steps (Saxe et al. 2014)."""
    units, gates, _ = shape
    draw = nn.initializers.orthogonal()
    return jnp.stack([draw(one, (units, units), dtype) for one in jax.random.split(key, gates)], axis=1)
