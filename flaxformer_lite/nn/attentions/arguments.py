"""The record of arguments that every attention takes, and its checks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.nn.functions import kernels, masks
from flaxformer_lite.nn.functions.sharding import UNSHARDED, ActivationSharding

Bias = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class DistanceBias(Protocol):
    """A bias that depends only on how far ahead a key is; see nn/positions/encoding.py."""

    def __call__(
        self, q_BTNH: jax.Array, rows_T: jax.Array, columns_S: jax.Array, /
    ) -> jax.Array: ...

    def of_distance(self, q_BTNH: jax.Array, T: int, S: int) -> jax.Array: ...


def is_by_distance(bias: Bias | jax.Array | None) -> TypeGuard[DistanceBias]:
    """Returns whether a bias depends only on the distance."""
    return getattr(bias, "by_distance", False)


class Resolved(NamedTuple):
    """Mask, slots and scale with their defaults filled in."""

    mask: masks.Mask | None
    q_index_T: jax.Array  # slots of the rows, as the mask numbers them
    k_index_S: jax.Array
    scale: float
    rows_ordered: bool  # the indices are 0, 1, 2 ..., so that the mask's column bounds
    columns_ordered: bool  # apply to columns, and are static if this also holds for rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Arguments:
    """The arguments of attention other than queries, keys and values.

    `dispatch.attention` documents each of them.
    """

    mask: masks.Mask | jax.Array | None = None
    bias: Bias | jax.Array | None = None
    scale: float | None = None
    softcap: float = 0.0
    dropout_rate: float = 0.0
    dropout_key: jax.Array | None = None
    q_index: jax.Array | None = None
    k_index: jax.Array | None = None
    sinks_N: jax.Array | None = None
    sharding: ActivationSharding = UNSHARDED

    @property
    def drops(self) -> bool:
        """Whether attention weights are dropped."""
        return self.dropout_key is not None and self.dropout_rate > 0

    @property
    def has_slots(self) -> bool:
        """Whether rows or columns are slots of a cache."""
        return self.q_index is not None or self.k_index is not None

    def resolve(self, q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array) -> Resolved:
        """Checks the arguments against queries, keys and values, and fills in defaults.

        Raises:
          ValueError: shapes that do not fit each other, naming the argument, the rule and the way
            out.
        """
        kernels.check_shapes(q_BTNH, k_BSKH, v_BSKH)
        B, T, N, H = q_BTNH.shape
        S = k_BSKH.shape[1]
        for name, index, length in (("q_index", self.q_index, T), ("k_index", self.k_index, S)):
            if index is not None and index.shape != (length,):
                raise ValueError(
                    f"{name} has shape {index.shape}: needs one int32 slot per position,"
                    f" ({length},)."
                )
        mask = self.mask
        rows_ordered = self.q_index is None
        columns_ordered = self.k_index is None
        q_index_T = self.q_index
        if q_index_T is None:
            q_index_T = jnp.arange(T, dtype=jnp.int32)
        k_index_S = self.k_index
        if k_index_S is None:
            k_index_S = jnp.arange(S, dtype=jnp.int32)
        check_mask(mask, B, T, S, self.q_index, self.k_index)
        if mask is not None and not isinstance(mask, masks.Mask):
            mask = masks.dense(mask)
            # An array refers to this call's rows and columns, not to slots; empty slots stay
            # marked.
            q_index_T = jnp.arange(T, dtype=jnp.int32)
            k_index_S = jnp.where(k_index_S < 0, -1, jnp.arange(S, dtype=jnp.int32))
        if mask is None and not columns_ordered:
            mask = masks.full()
        if self.bias is not None and not callable(self.bias):
            _check("bias", self.bias, ((1, B), (1, N), (T,), (S,)))
        if self.sinks_N is not None and self.sinks_N.shape != (N,):
            raise ValueError(
                f"sinks has shape {self.sinks_N.shape}: needs one logit per query head, ({N},)."
            )
        scale = self.scale
        if scale is None:
            scale = H**-0.5
        return Resolved(mask, q_index_T, k_index_S, scale, rows_ordered, columns_ordered)


def check_mask(
    mask: masks.Mask | jax.Array | None,
    batch: int,
    rows: int,
    columns: int,
    q_index: jax.Array | None = None,
    k_index: jax.Array | None = None,
) -> None:
    """Rejects a mask made for other numbers of queries or keys.

    It would silently repeat its last row or column.

    A Mask of slots (`q_index`, `k_index`) may have more rows and columns than there are queries and
    keys.
    """
    if mask is not None and not isinstance(mask, masks.Mask):
        _check_mask_array(mask, batch, rows, columns)
    for name, size, height, width in _sizes(mask):
        if size not in (1, batch):
            raise ValueError(
                f"{name} has {size} rows for a batch of {batch}: needs one per example, or one for"
                " all."
            )
        if q_index is None and height is not None and height != rows:
            raise ValueError(f"{name} has {height} rows for {rows} queries: needs one per query.")
        if k_index is None and width is not None and width != columns:
            raise ValueError(f"{name} has {width} columns for {columns} keys: needs one per key.")


def check_slots(mask: masks.Mask | jax.Array | None, slots: int) -> None:
    """Refuses a Mask that does not reach the last slot of a cache."""
    for name, _, height, width in _sizes(mask):
        for size in (height, width):
            if size is not None and size < slots:
                raise ValueError(
                    f"{name} has {size} columns for a cache of {slots} slots: with a cache a mask"
                    " is over all slots, not over this call's tokens."
                )


def scores(
    q_BTNH: jax.Array, k_BSKH: jax.Array, bias_BNTS: jax.Array | None, scale: float, softcap: float
) -> jax.Array:
    """Computes float32 logits `cap tanh(scale q . k / cap) + bias`, [B, N, T, S]."""
    scores_BNTS = kernels.dot_products(q_BTNH, k_BSKH) * scale
    if softcap:
        scores_BNTS = softcap * jnp.tanh(scores_BNTS / softcap)
    if bias_BNTS is not None:
        scores_BNTS += bias_BNTS.astype(jnp.float32)
    return scores_BNTS


def _sizes(
    mask: masks.Mask | jax.Array | None,
) -> Iterator[tuple[str, int, int | None, int | None]]:
    """Yields the name, batch, rows and columns of each array in a mask.

    A number is None where any fits.
    """
    if isinstance(mask, masks.And | masks.Or):
        yield from _sizes(mask.a)
        yield from _sizes(mask.b)
    elif isinstance(mask, masks.Not):
        yield from _sizes(mask.a)
    elif isinstance(mask, masks.Columns):
        yield mask.name, mask.keep_BS.shape[0], None, mask.keep_BS.shape[1]
    elif isinstance(mask, masks.Segments):
        yield "segments(q)", mask.q_BT.shape[0], mask.q_BT.shape[1], None
        if mask.k_BS is None:
            yield "segments(q) without k", mask.q_BT.shape[0], None, mask.q_BT.shape[1]
        else:
            yield "segments(k)", mask.k_BS.shape[0], None, mask.k_BS.shape[1]
    elif isinstance(mask, masks.Dense):
        batch, *sizes = mask.mask_BTS.shape
        height, width = (None if n == 1 else n for n in sizes)  # 1 is broadcast
        yield "dense(mask)", batch, height, width


def _check_mask_array(mask: jax.Array, batch: int, rows: int, columns: int) -> None:
    shape = getattr(mask, "shape", ())
    if isinstance(mask, list | tuple):
        shape = np.shape(mask)
    fits = len(shape) == 2 and shape == (rows, columns)
    if len(shape) == 2 and (not fits or batch == rows > 1):
        problem = f"must be [1 or {batch}, {rows}, {columns}]"
        if fits:
            problem = "is also [batch, source]"
        raise ValueError(
            f"mask has shape {shape}: {problem}; a padding mask is padding(x), one of rows and"
            " columns for all examples dense(x)."
        )
    _check("mask", masks.dense(mask).mask_BTS, ((1, batch), (rows,), (columns,)))


def _check(name: str, array: jax.Array, sizes: tuple[tuple[int, ...], ...]) -> None:
    if array.ndim == len(sizes):
        pairs = zip(array.shape, sizes, strict=True)
        if all(size in allowed for size, allowed in pairs):
            return
    wanted = ", ".join(" or ".join(map(str, sorted(set(allowed)))) for allowed in sizes)
    raise ValueError(
        f"{name} has shape {array.shape}: must be [{wanted}]; an axis of size one is broadcast."
    )
