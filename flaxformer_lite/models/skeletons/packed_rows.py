"""Examples computed in packed rows: their tokens side by side, without the padding behind them."""

import functools
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from flaxformer_lite.config import ConfigError

OrNone = TypeVar("OrNone", jax.Array, jax.Array | None)


class PackedRows:
    """The tokens of B padded examples [B, T] in fewer rows, and back.

    The examples come in G groups of B / G neighbors, whose tokens stay among themselves: one for
    each device that the batch is split over. Each token keeps the position, the type and the
    neighbors of its example that it has without packing, and sees that example alone.

    Attributes:
      packing_GRW: int32, the token in each slot of the R rows of a group, as `example * T + column`
        counted within the group; -1 for none.
      shape: B and T.
    """

    def __init__(
        self, packing_GRW: jax.Array, shape: tuple[int, int], vectors: ArrayLike | None = None
    ):
        if vectors is not None:
            raise ConfigError("packing: packs ids; pass input_ids, not inputs_embeds.")
        packing_GRW = jnp.asarray(packing_GRW)
        if packing_GRW.ndim != 3 or not jnp.issubdtype(packing_GRW.dtype, jnp.integer):
            raise ConfigError(
                "packing: must be integers [groups, rows, width], not"
                f" {packing_GRW.dtype} {packing_GRW.shape}."
            )
        groups = packing_GRW.shape[0]
        batch, length = shape
        if batch % groups:
            raise ConfigError(f"packing: {batch} examples do not divide into {groups} groups.")
        self.shape = shape
        self._length = length
        self._rows = (groups * packing_GRW.shape[1], packing_GRW.shape[2])
        self._slots_GM = packing_GRW.reshape(groups, -1).astype(jnp.int32)
        self._columns = batch // groups * length  # of a group

    def pack(self, x_BT: OrNone) -> OrNone:
        """Returns values of tokens (or None) by packed row, [G * R, W]; 0 where no token is.

        Positions are counted in the padded rows before, so that each token keeps its own.
        """
        if x_BT is None:
            return None
        x_BT = jnp.broadcast_to(jnp.asarray(x_BT), self.shape)
        x_GN = x_BT.reshape(len(self._slots_GM), self._columns)
        return _take(x_GN, self._slots_GM).reshape(self._rows)

    def segments(self, attention_mask_BT: jax.Array | None) -> jax.Array:
        """Returns segment ids [G * R, W]: one per example, 0 for padding and hidden tokens."""
        ids_GM = jnp.where(self._slots_GM >= 0, self._slots_GM // self._length + 1, 0)
        ids = ids_GM.reshape(self._rows)
        if attention_mask_BT is None:
            return ids
        return jnp.where(self.pack(attention_mask_BT) != 0, ids, 0)

    def unpack(self, x: jax.Array) -> jax.Array:
        """Returns vectors [G * R, W, D] by example, [B, T, D]; zeros where there is no token."""
        groups = len(self._slots_GM)
        x_GMD = x.reshape(groups, -1, x.shape[-1])
        x_GND = _exchange(x_GMD, self._slot_of_GN, self._slots_GM)
        return x_GND.reshape(*self.shape, x.shape[-1])

    @functools.cached_property
    def _slot_of_GN(self) -> jax.Array:
        """The slot of each token of a group, -1 where it has none."""
        slots = self._slots_GM.shape[1]
        index_M = jnp.arange(slots, dtype=jnp.int32)

        def invert(slots_M: jax.Array) -> jax.Array:
            nowhere_N = jnp.full((self._columns,), -1, jnp.int32)
            place_M = jnp.where(slots_M >= 0, slots_M, self._columns)
            return nowhere_N.at[place_M].set(index_M, mode="drop")

        return jax.vmap(invert)(self._slots_GM)


def _take(x: jax.Array, index_GN: jax.Array) -> jax.Array:
    """Takes columns [G, N, ...] of x [G, M, ...]; 0 where the index is negative."""
    index = index_GN.reshape(*index_GN.shape, *(1,) * (x.ndim - 2))
    taken = jnp.take_along_axis(x, jnp.maximum(index, 0), axis=1, mode="clip")
    return jnp.where(index >= 0, taken, jnp.zeros((), x.dtype))


@jax.custom_vjp
def _exchange(x_GMD: jax.Array, index_GN: jax.Array, inverse_GM: jax.Array) -> jax.Array:
    """Takes vectors by `index`.

    The gradient is taken by the inverse index, as no vector goes to two places; a scatter would be
    many times slower.
    """
    return _take(x_GMD, index_GN)


def _forward(x_GMD: jax.Array, index_GN: jax.Array, inverse_GM: jax.Array):
    return _take(x_GMD, index_GN), inverse_GM


def _backward(inverse_GM: jax.Array, gradient_GND: jax.Array):
    return _take(gradient_GND, inverse_GM), None, None


_exchange.defvjp(_forward, _backward)
