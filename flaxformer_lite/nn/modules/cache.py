"""The caches of layers: keys and values, or a recurrent state.

They are explicit records, passed in and returned, never hidden.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self, TypeGuard

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError, Execution, StackConfig
from flaxformer_lite.nn.functions.masks import Slot
from flaxformer_lite.types import Array, Tree


class LayerCache(flax.struct.PyTreeNode):
    """The keys, already rotated, and values of one layer.

    Attributes:
      k_BKSH, v_BKSH: one slot per position; a sliding window of W keeps W slots, with position i in
        slot i mod W. Heads come before slots, so that the slots of a head are contiguous and no
        step has to copy them. With batch size 1 there is no batch axis, or XLA:CPU would copy all
        slots for each token: SmolLM2-135M, 128 tokens after 700, would take 11.2 CPU s, not 8.8.
      length: int32 scalar, the number of positions stored so far, and so the slot of the next
        token.
      cross_k_BKSH, cross_v_BKSH: the encoder's, filled by the first call that gets the encoder's
        output.
      rolls: whether position i is in slot i mod W, so that there is always room.
      k_scale_BKS1, v_scale_BKS1: scales of keys and values that are kept in int8, one for each head
        and position; None for those that are kept as floats.
    """

    k_BKSH: jax.Array
    v_BKSH: jax.Array
    length: jax.Array
    cross_k_BKSH: jax.Array | None = None
    cross_v_BKSH: jax.Array | None = None
    rolls: bool = flax.struct.field(pytree_node=False, default=False)
    k_scale_BKS1: jax.Array | None = None
    v_scale_BKS1: jax.Array | None = None

    @property
    def slots(self) -> int:
        return self.k_BKSH.shape[-2]


class StateCache(flax.struct.PyTreeNode):
    """The state of one recurrent layer after the last token that it has read.

    Attributes:
      state: the arrays of the state, [B, U].
      length: int32 scalar, the number of positions read so far.
      cross_k_BKSH, cross_v_BKSH: as in LayerCache.
      slots: the number of positions that the cache is for.
    """

    state: tuple[jax.Array, ...]
    length: jax.Array
    cross_k_BKSH: jax.Array | None = None
    cross_v_BKSH: jax.Array | None = None
    slots: int = flax.struct.field(pytree_node=False, default=0)

    rolls: ClassVar[bool] = False


class MixerCache(Protocol):
    """Protocol of the caches of all mixers; each is a pytree, LayerCache or another."""

    @property
    def length(self) -> jax.Array: ...

    def replace(self, **fields: object) -> Self: ...


# Of all layers, or of all kinds of layer where they are scanned; None for one without a mixer.
Cache = Sequence[MixerCache | None]

# fields that each row has its own of
PER_ROW = ("k_BKSH", "v_BKSH", "k_scale_BKS1", "v_scale_BKS1")
# fields that beams of one prompt have in common
SHARED = (
    "length",
    "cross_k_BKSH",
    "cross_v_BKSH",
)


def _no_positions() -> Any:
    """Returns the length of an empty cache: a numpy zero, known to be zero inside jit too."""
    return np.zeros((), np.int32)


def empty_state(sizes: Sequence[int], batch: int, length: int, dtype: DTypeLike) -> StateCache:
    """Builds the cache of a recurrent layer with states of these sizes, all zero."""
    states = tuple(jnp.zeros((batch, size), dtype) for size in sizes)
    return StateCache(states, _no_positions(), slots=length)


def empty(
    batch: int,
    kv_heads: int,
    length: int,
    head_dim: int,
    dtype: DTypeLike,
    *,
    window: int = 0,
    value_dim: int = 0,
) -> LayerCache:
    """Builds an empty cache of one layer.

    `value_dim` is the width of values if it differs from `head_dim`. With dtype int8, keys and
    values have scales.
    """
    capacity = min(length, window or length)
    shape: tuple[int, ...] = (kv_heads, capacity)
    if batch != 1:  # as LayerCache explains
        shape = (batch, *shape)
    rolls = capacity == window
    k_BKSH = jnp.zeros((*shape, head_dim), dtype)
    v_BKSH = jnp.zeros((*shape, value_dim or head_dim), dtype)
    scales = {}
    if dtype == jnp.int8:
        for name in ("k_scale_BKS1", "v_scale_BKS1"):
            scales[name] = jnp.zeros((*shape, 1), jnp.float32)
    return LayerCache(k_BKSH, v_BKSH, _no_positions(), rolls=rolls, **scales)


def without_rings(cache: Tree, length: int) -> Tree:
    """Returns empty caches where those that roll have a slot for each of `length` positions.

    So a call may go back to any earlier slot, also behind a window.
    """

    def layer(kept: MixerCache) -> MixerCache:
        if not isinstance(kept, LayerCache) or not kept.rolls:
            return kept

        def longer(x: jax.Array | None) -> jax.Array | None:
            if x is None:
                return None
            return jnp.zeros((*x.shape[:-2], length, x.shape[-1]), x.dtype)

        arrays = {name: longer(getattr(kept, name)) for name in PER_ROW}
        return kept.replace(rolls=False, **arrays)

    return jax.tree.map(layer, cache, is_leaf=_is_layer)


def init_stack_cache(
    cfg: StackConfig, batch: int, length: int, d_model: int, execution: Execution = Execution()
) -> list[MixerCache | None]:
    """Builds empty caches for a stack: one per layer.

    If the stack scans, there is one per kind, stacked over a leading Y axis.

    Args:
      cfg, execution: the stack's.
      batch: B.
      length: S, the number of positions.
      d_model: D, the width of the stack's input.
    """
    if not isinstance(cfg, StackConfig):
        raise ConfigError(
            f"init_stack_cache of {type(cfg).__name__}: needs a StackConfig; for a whole model use"
            " init_cache."
        )
    dtype = jnp.dtype(execution.dtype if execution.cache == "float" else execution.cache)
    sizes = (batch, length, d_model, dtype)
    kinds: list[MixerCache | None] = []
    for layer in cfg.pattern:
        if layer.mixer is None:
            kinds.append(None)
        else:
            kinds.append(layer.mixer.init_cache(*sizes))
    if not cfg.scans(execution):
        return [kinds[cfg.kind(layer)] for layer in range(cfg.num_layers)]

    def stack(x: Array) -> Array:
        shape = (cfg.num_layers // len(kinds), *x.shape)
        # The numpy zero of an empty cache stays numpy, as under jit a jnp one could not be known to
        # be zero.
        numpy = np if isinstance(x, np.ndarray) else jnp
        return numpy.broadcast_to(x[None], shape)

    return jax.tree.map(stack, kinds)


def length_of(cache: Cache | MixerCache) -> jax.Array:
    """Returns the number of positions that a model's caches hold, int32 scalar.

    It is the same in all layers.
    """
    layer = jax.tree.leaves(cache, is_leaf=_is_layer)[0]
    if layer.length.ndim == 0:
        return layer.length
    # A scan stacks the lengths of its layers, which are all the same.
    return layer.length[0]


def capacity_of(cache: Cache | MixerCache) -> int:
    """Returns the number of slots of the longest cache of a layer or stack; 0 without one."""
    return max((c.slots for c in layers_of(cache)), default=0)


def check_stack(cfg: StackConfig, execution: Execution, cache: object, batch: int) -> None:
    """Checks that caches fit this stack and this many rows."""
    wanted = len(cfg.pattern) if cfg.scans(execution) else cfg.num_layers
    way_out = f"make it with init_cache or init_stack_cache, for a batch of {batch}"
    if not isinstance(cache, Sequence):
        raise ConfigError(
            f"cache is a {type(cache).__name__}: must be a list with the caches of all layers;"
            f" {way_out}."
        )
    if len(cache) != wanted:
        raise ConfigError(
            f"cache has {len(cache)} entries for a stack that keeps {wanted}; {way_out}."
        )
    for layer in layers_of(list(cache)):
        _check_rows(layer, batch, axis=int(cfg.scans(execution)))


def _check_rows(layer: LayerCache | StateCache, batch: int, axis: int = 0) -> None:
    rows = 1
    if not _is_single(layer, axis):
        rows = jax.tree.leaves(layer)[0].shape[axis]
    if rows != batch:
        raise ConfigError(
            f"cache has {rows} rows for {batch} rows of tokens: make one for a batch of {batch}."
        )


def check_room(x_BTD: jax.Array, cache: Cache | MixerCache, index: Slot) -> jax.Array:
    """Rejects tokens from slot `index` on that the caches cannot hold.

    If `index` is traced, turns them into NaN instead.
    """
    layers = layers_of(cache)
    length = x_BTD.shape[1]
    if any(isinstance(layer, StateCache) for layer in layers):
        x_BTD = _check_follows(x_BTD, index, length_of(cache))
    room = min((layer.slots for layer in layers if not layer.rolls), default=None)
    if room is None:
        return x_BTD
    if isinstance(index, jax.core.Tracer):
        return nan_where((index + length > room,), x_BTD)
    if index + length > room:
        raise ConfigError(
            f"{length} tokens from slot {int(index)} on: the cache ends at {room} slots; make a"
            " longer one."
        )
    return x_BTD


def _check_follows(x_BTD: jax.Array, index: Slot, length: jax.Array) -> jax.Array:
    """Refuses to continue a recurrent state elsewhere than at its end; slot 0 starts a new one."""
    wrong = (index != 0) & (index != length)
    if isinstance(wrong, jax.core.Tracer):
        return nan_where((wrong,), x_BTD)
    if wrong:
        raise ConfigError(
            f"cache_index={int(index)}: a recurrent layer has read {int(length)} tokens and keeps"
            f" only its last state; continue at {int(length)}, keep the cache of an earlier call,"
            " or start again at 0."
        )
    return x_BTD


def check_layer(
    x_BTD: jax.Array,
    cache: object,
    index: Slot | None,
    *,
    first: bool,
    kind: type[LayerCache] | type[StateCache] = LayerCache,
) -> jax.Array:
    """Checks the cache of a layer by itself, like `check_stack` and `check_room`."""
    if not isinstance(cache, kind):
        raise ConfigError(
            f"cache is a {type(cache).__name__}: must be the {kind.__name__} of this one layer."
        )
    _check_rows(cache, x_BTD.shape[0])
    return check_room(x_BTD, cache, start_of(cache, index, first=first))


def check_window(cache: LayerCache, window: int) -> None:
    """Refuses a rolling cache that has overwritten positions within the layer's window."""
    if cache.rolls and not 0 < window <= cache.k_BKSH.shape[-2]:
        raise ConfigError(
            f"cache keeps the last {cache.k_BKSH.shape[-2]} positions for a layer with"
            f" window={window}: make it from the layer's own config."
        )


def nan_where(faults: tuple[jax.Array, ...], x_BTD: jax.Array) -> jax.Array:
    """Turns x into NaN if one of the faults is True, as a traced call cannot be refused."""
    for fault in faults:
        x_BTD = jnp.where(fault, jnp.asarray(jnp.nan, x_BTD.dtype), x_BTD)
    return x_BTD


def start_of(cache: LayerCache | StateCache, index: Slot | None, *, first: bool) -> Slot:
    """Returns the slot of the first new position.

    Args:
      cache: the cache of a layer.
      index: the slot; None is the length of the cache.
      first: whether the cache is known to be empty, so that the slot is 0.
    """
    if first:
        return 0
    if index is None:
        return cache.length
    return index


def repeat_rows(cache: Tree, times: int, axis: int) -> Tree:
    """Repeats each example's caches `times` times in a row.

    Args:
      cache: the caches of all layers; other classes of caches need a field `length`.
      times: how often.
      axis: the batch axis, 1 if layers are stacked.
    """

    def layer(kept: MixerCache) -> MixerCache:
        if _is_single(kept, axis) and times > 1:
            arrays = {}
            for name in PER_ROW:
                x = getattr(kept, name)
                if x is not None:
                    arrays[name] = jnp.expand_dims(x, axis)
            kept = kept.replace(**arrays)
        # The length has no batch axis to repeat.
        repeated = jax.tree.map(
            lambda x: jnp.repeat(x, times, axis=axis), kept.replace(length=None)
        )
        return repeated.replace(length=kept.length)

    return jax.tree.map(layer, cache, is_leaf=_is_layer)


def take_rows(cache: Tree, rows: jax.Array, axis: int) -> Tree:
    """Selects the caches of the given rows, in order.

    The encoder's part is shared by all beams of a prompt and stays.
    """

    def layer(kept: MixerCache) -> MixerCache:
        shared = {name: getattr(kept, name) for name in SHARED if hasattr(kept, name)}
        per_row = kept.replace(**dict.fromkeys(shared))
        return jax.tree.map(lambda x: jnp.take(x, rows, axis=axis), per_row).replace(**shared)

    return jax.tree.map(layer, cache, is_leaf=_is_layer)


def _is_layer(cache: object) -> bool:
    return hasattr(cache, "length")


def _is_single(layer: object, axis: int) -> TypeGuard[LayerCache]:
    """Returns whether keys and values belong to a single example, without a batch axis."""
    return isinstance(layer, LayerCache) and layer.k_BKSH.ndim == 3 + axis


def layers_of(cache: object) -> list[LayerCache | StateCache]:
    """Lists the caches of attention and of recurrent layers."""
    leaves = jax.tree.leaves(cache, is_leaf=_is_layer)
    return [leaf for leaf in leaves if isinstance(leaf, LayerCache | StateCache)]
