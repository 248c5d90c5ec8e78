"""The structure of a mask, as fused kernels take it: a window, documents, kept columns; not an array."""

from typing import NamedTuple

import jax

from flaxformer_lite.functions import masks


class Structure(NamedTuple):
    """The intersection of `q - left <= k <= q + right`, equal documents, and kept columns."""

    left: int | None = None
    right: int | None = None
    q_segments_BT: jax.Array | None = None
    k_segments_BS: jax.Array | None = None
    keep_BS: jax.Array | None = None


def structure_of(mask: masks.Mask | jax.Array | None) -> Structure | None:
    """Returns the structure of a mask, or None if no kernel can take it: unions, negations, arrays."""
    if mask is None or isinstance(mask, masks.Full):
        return Structure()
    if isinstance(mask, masks.Window):
        return Structure(mask.left, mask.right)
    if isinstance(mask, masks.Segments):
        return Structure(q_segments_BT=mask.q_BT, k_segments_BS=mask.k_BS)
    if isinstance(mask, masks.Columns):
        return Structure(keep_BS=mask.keep_BS)
    if isinstance(mask, masks.And):
        a, b = structure_of(mask.a), structure_of(mask.b)
        return None if a is None or b is None else _both(a, b)
    return None


def _both(a: Structure, b: Structure) -> Structure | None:
    if a.q_segments_BT is not None and b.q_segments_BT is not None:
        return None
    keep = a.keep_BS if b.keep_BS is None else b.keep_BS if a.keep_BS is None else a.keep_BS & b.keep_BS
    own = a if a.q_segments_BT is not None else b
    left, right = (min((n for n in pair if n is not None), default=None) for pair in zip(a[:2], b[:2], strict=True))
    return Structure(left, right, own.q_segments_BT, own.k_segments_BS, keep)
