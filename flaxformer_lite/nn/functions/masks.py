"""Attention masks: boolean, True = may attend, composed with `&`, `|` and `~`.

`picture` draws them.

A mask is a small function of row and column numbers, not an array: dense attention evaluates it for
all of T x S, blockwise attention for one block at a time, and decoding with a cache for a single
row.

    >>> mask = causal() & segments(jnp.array([[1, 1, 2, 2, 0]]))
    >>> print(mask.picture(5))
    # . . . .
    # # . . .
    . . # . .
    . . # # .
    . . . . .

Masks are pytrees, so they pass through jit, scan and remat like any array.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

Slot = int | jax.Array  # an array where it is not known before the program runs
M = TypeVar("M", bound="Mask")


class Mask:
    """Says which rows may attend to which columns.

    `mask(q_index_T, k_index_S)` is boolean [B or 1, T, S].

    The indices are int32 row and column numbers (slots of a cache), not position ids. A negative
    column number is an empty slot: no mask, negated or not, lets any row attend to it.
    """

    __array_ufunc__ = None  # so that numpy's `array & mask` asks the mask

    def __call__(self, q_index_T: jax.Array, k_index_S: jax.Array, /) -> jax.Array:
        return self.allows(q_index_T, k_index_S) & (k_index_S >= 0)[None, None, :]

    def allows(self, q_index_T: jax.Array, k_index_S: jax.Array, /) -> jax.Array:
        """Evaluates the rule; new masks override this, and need not handle negative columns."""
        raise NotImplementedError

    def column_bounds(self, start: Slot, stop: Slot, length: int) -> tuple[Slot, Slot]:
        """Returns static bounds of the visible columns.

        With bounds (first, last), rows start..stop-1 see no column outside first..last-1.

        start and stop are ints, or traced int32 arrays; the bounds are of the same kind.
        """
        return 0, length

    def dense(self, T: int, S: int | None = None) -> jax.Array:
        """Returns the whole mask as an array [B or 1, T, S]; S defaults to T."""
        return self(jnp.arange(T), jnp.arange(T if S is None else S))

    def picture(self, T: int, S: int | None = None, *, example: int = 0) -> str:
        """Draws the mask of one example as text: one line per query, `#` where it may attend."""
        mask_BTS = np.asarray(self.dense(T, S))
        seen_TS = mask_BTS[example if len(mask_BTS) > 1 else 0]
        marks_TS = np.where(seen_TS, "#", ".")
        return "\n".join(map(" ".join, marks_TS))

    def __and__(self, other: "Mask | jax.Array") -> "Mask":
        return And(self, _operand(other))

    def __or__(self, other: "Mask | jax.Array") -> "Mask":
        return Or(self, _operand(other))

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> "Mask":
        return Not(self)


@dataclass_transform(eq_default=False, frozen_default=True)
def _mask(cls: type[M]) -> type[M]:
    return jax.tree_util.register_dataclass(dataclass(frozen=True, eq=False)(cls))


@_mask
class Window(Mask):
    """Columns q - left .. q + right; None is unbounded."""

    left: int | None = field(metadata={"static": True})
    right: int | None = field(metadata={"static": True})

    def allows(self, q_index_T: jax.Array, k_index_S: jax.Array, /) -> jax.Array:
        ahead_1TS = (k_index_S[None, :] - q_index_T[:, None])[None]
        seen_1TS = jnp.ones_like(ahead_1TS, bool)
        if self.left is not None:
            seen_1TS &= ahead_1TS >= -self.left
        if self.right is not None:
            seen_1TS &= ahead_1TS <= self.right
        return seen_1TS

    def column_bounds(self, start: Slot, stop: Slot, length: int) -> tuple[Slot, Slot]:
        first: Slot = 0
        last: Slot = length
        if self.left is not None:
            first = _least(_most(start - self.left, 0), length)
        if self.right is not None:
            last = _least(stop + self.right, length)
        return first, _most(first, last)


@_mask
class Columns(Mask):
    """A mask of columns, each visible to every row or to none."""

    keep_BS: jax.Array
    name: str = field(metadata={"static": True})

    def allows(self, q_index_T: jax.Array, k_index_S: jax.Array, /) -> jax.Array:
        # Clip, as `Mask.__call__` hides the negative columns that this lookup must survive.
        keep_B1S = jnp.take(self.keep_BS, k_index_S, axis=1, mode="clip")[:, None, :]
        return jnp.broadcast_to(keep_B1S, (keep_B1S.shape[0], *q_index_T.shape, *k_index_S.shape))


@_mask
class Segments(Mask):
    """The columns of a row's own document; see `segments`."""

    q_BT: jax.Array
    k_BS: jax.Array | None  # None: equal to the rows', so that a row is known to see itself

    def allows(self, q_index_T: jax.Array, k_index_S: jax.Array, /) -> jax.Array:
        k_BS = self.q_BT if self.k_BS is None else self.k_BS
        q_BT1 = jnp.take(self.q_BT, q_index_T, axis=1, mode="clip")[:, :, None]
        k_B1S = jnp.take(k_BS, k_index_S, axis=1, mode="clip")[:, None, :]
        return (q_BT1 == k_B1S) & (q_BT1 != 0)


@_mask
class Dense(Mask):
    """A mask of a boolean array; see `dense`."""

    mask_BTS: jax.Array

    def allows(self, q_index_T: jax.Array, k_index_S: jax.Array, /) -> jax.Array:
        rows_BTS = jnp.take(self.mask_BTS, q_index_T, axis=1, mode="clip")
        return jnp.take(rows_BTS, k_index_S, axis=2, mode="clip")


@_mask
class And(Mask):
    """Mask that allows what both of two masks allow."""

    a: Mask
    b: Mask

    def allows(self, q_index_T: jax.Array, k_index_S: jax.Array, /) -> jax.Array:
        return self.a.allows(q_index_T, k_index_S) & self.b.allows(q_index_T, k_index_S)

    def column_bounds(self, start: Slot, stop: Slot, length: int) -> tuple[Slot, Slot]:
        a_first, a_last = self.a.column_bounds(start, stop, length)
        b_first, b_last = self.b.column_bounds(start, stop, length)
        first = _most(a_first, b_first)
        return first, _most(first, _least(a_last, b_last))


@_mask
class Or(Mask):
    """Mask that allows what either of two masks allows."""

    a: Mask
    b: Mask

    def allows(self, q_index_T: jax.Array, k_index_S: jax.Array, /) -> jax.Array:
        return self.a.allows(q_index_T, k_index_S) | self.b.allows(q_index_T, k_index_S)

    def column_bounds(self, start: Slot, stop: Slot, length: int) -> tuple[Slot, Slot]:
        a_first, a_last = self.a.column_bounds(start, stop, length)
        b_first, b_last = self.b.column_bounds(start, stop, length)
        return _least(a_first, b_first), _most(a_last, b_last)


@_mask
class Not(Mask):
    """Mask that allows what another mask does not."""

    a: Mask

    def allows(self, q_index_T: jax.Array, k_index_S: jax.Array, /) -> jax.Array:
        return ~self.a.allows(q_index_T, k_index_S)


def full() -> Mask:
    """Lets every row see every column."""
    return Window(None, None)


def causal() -> Mask:
    """Lets each row see its own column and those before it."""
    return Window(None, 0)


def window(left: int, right: int = 0) -> Mask:
    """Lets each row see its own column, `left` columns before it and `right` after it.

    A sliding window of W tokens, as published configurations count it (Mistral, Gemma), is
    `window(W - 1)`.

    Args:
      left: number of columns before the row's own.
      right: number of columns after it.

    Raises:
      ValueError: one of them is negative.

    Reference: Beltagy et al. 2020, Longformer, section 3.1 (arXiv:2004.05150).
    """
    if not isinstance(left, int | np.integer) or not isinstance(right, int | np.integer):
        raise TypeError(f"window(left={left!r}, right={right!r}): both must be whole numbers.")
    if left < 0 or right < 0:
        raise ValueError(
            f"window(left={left}, right={right}): neither may be negative; window(0) sees only"
            " itself."
        )
    return Window(left, right)


def padding(keep_BS: jax.Array) -> Mask:
    """Lets every row see the columns to keep, which hold real tokens.

    Args:
      keep_BS: bool or integer, such as a tokenizer's attention mask; True or nonzero is kept. With
        a cache, it covers all slots, not only the tokens of the call.

    Raises:
      ValueError: the array has another dtype or rank.
    """
    return Columns(_boolean("padding(keep)", keep_BS, "[batch, source]"), "padding(keep)")


def prefix(in_prefix_BS: jax.Array) -> Mask:
    """Lets every row see the prefix; `causal() | prefix(p)` is the mask of a prefix LM.

    Args:
      in_prefix_BS: bool or integer, True or nonzero for the tokens of the prefix.

    Raises:
      ValueError: the array has another dtype or rank.

    Reference: Raffel et al. 2020, T5, section 3.2.1 (arXiv:1910.10683).
    """
    return Columns(
        _boolean("prefix(in_prefix)", in_prefix_BS, "[batch, source]"), "prefix(in_prefix)"
    )


def segments(q_BT: jax.Array, k_BS: jax.Array | None = None) -> Mask:
    """Lets each row see the columns of its own document, so that packed documents never mix.

    Args:
      q_BT: integer document ids of the rows; 0 is padding, which attends to nothing and is attended
        to by nothing.
      k_BS: integer document ids of the columns; defaults to `q_BT`. Cross-attention passes those of
        the source.

    Raises:
      ValueError: ids are not integers [batch, length].
    """
    q_BT = _segment_ids("q", q_BT)
    if k_BS is not None:
        k_BS = _segment_ids("k", k_BS)
    return Segments(q_BT, k_BS)


def _segment_ids(name: str, ids: jax.Array) -> jax.Array:
    ids = _array(f"segments({name})", ids)
    if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(
            f"segments({name}): must be integer ids [batch, length], not {ids.dtype} {ids.shape}."
        )
    return ids


def dense(mask: jax.Array) -> "Dense":
    """Turns a boolean array into a mask that can be combined with others.

    Args:
      mask: bool or integer [B or 1, T, S], [T, S] or [B or 1, 1, T, S]; True or nonzero = may
        attend.

    Raises:
      ValueError: the array has another dtype or rank.
    """
    mask = _array("mask", mask)
    if mask.ndim == 4 and mask.shape[1] == 1:
        mask = mask[:, 0]
    if mask.ndim == 2:
        mask = mask[None]
    return Dense(_boolean("dense(mask)", mask, "[batch, target, source]"))


def both(
    a: Mask | jax.Array | None,
    b: Mask | jax.Array | None,
    q_index_T: jax.Array,
    k_index_S: jax.Array,
) -> Mask | jax.Array | None:
    """Returns `a & b`, where None allows everything.

    Args:
      a, b: masks, boolean arrays [B or 1, T, S], or None. A mask that is combined with an array is
        evaluated at the indices.
      q_index_T: int32, the numbers of the rows.
      k_index_S: int32, the numbers of the columns.
    """
    if a is None:
        return b
    if b is None:
        return a
    if isinstance(a, Mask) and isinstance(b, Mask):
        return a & b
    return _evaluated(a, q_index_T, k_index_S) & _evaluated(b, q_index_T, k_index_S)


def _evaluated(mask: Mask | jax.Array, q_index_T: jax.Array, k_index_S: jax.Array) -> jax.Array:
    if isinstance(mask, Mask):
        return mask(q_index_T, k_index_S)
    return dense(mask).mask_BTS


def evaluate_once(mask: Mask, length: int) -> Mask:
    """Evaluates a mask over length x length once, for all layers.

    Args:
      mask: the mask.
      length: the number of rows and columns.

    Returns:
      A mask of an array [B or 1, T, T], which keeps the static bounds of the columns.
    """
    array = dense(mask.dense(length))
    bounds = np.asarray([mask.column_bounds(row, row + 1, length) for row in range(length)])
    reach = bounds - np.arange(length)[:, None]
    left = int(max(-reach[:, 0].min(), 0))
    right = int(max(reach[:, 1].max() - 1, 0))
    if min(left, right) >= length - 1:
        return array
    return array & Window(left, right)


def _least(a: Slot, b: Slot) -> Slot:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return jnp.minimum(a, b)


def _most(a: Slot, b: Slot) -> Slot:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return jnp.maximum(a, b)


def _operand(x: Mask | jax.Array) -> Mask:
    if not (isinstance(x, Mask) or hasattr(x, "ndim")):
        raise TypeError(
            f"{x!r}: combine masks with masks; wrap an array as padding(x) or dense(x)."
        )
    if isinstance(x, Mask):
        return x
    return dense(x)


def _array(what: str, x: Any) -> jax.Array:
    if isinstance(x, list | tuple):
        x = np.asarray(x)
    if callable(x):
        name = getattr(x, "__name__", "a function")
        raise TypeError(f"{what}={name}: is a function, not a mask; call it: mask={name}().")
    if not hasattr(x, "ndim"):
        raise TypeError(f"{what}: must be an array, not {type(x).__name__}.")
    return x


def _boolean(what: str, array: jax.Array, axes: str) -> jax.Array:
    array = _array(what, array)
    if (
        not (array.dtype == jnp.bool_ or jnp.issubdtype(array.dtype, jnp.integer))
        or array.ndim != axes.count(",") + 1
    ):
        raise ValueError(
            f"{what}: must be boolean {axes}, True = may attend, not {array.dtype} {array.shape};"
            " try `x != 0`."
        )
    if array.dtype == jnp.bool_:
        return array
    return array != 0
