"""Reads the structure of a mask for fused kernels: a window, documents, and kept columns.

Also says which calls these kernels do not support.
"""

from typing import NamedTuple

import jax

from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions import masks

AUTO = (  # the way out of a kernel that cannot take a call
    "set model.attention=auto, or implementation='auto'"
)


class Structure(NamedTuple):
    """A mask: the intersection of a window, equal documents, and kept columns.

    A field of None restricts nothing.

    Attributes:
      left, right: the window, `q - left <= k <= q + right`.
      q_segments_BT, k_segments_BS: int32, the documents of rows and columns.
      keep_BS: bool, True for columns that may be seen.
    """

    left: int | None = None
    right: int | None = None
    q_segments_BT: jax.Array | None = None
    k_segments_BS: jax.Array | None = None
    keep_BS: jax.Array | None = None


def structure_of(mask: masks.Mask | jax.Array | None) -> Structure | None:
    """Returns the structure of a mask, or None for unions, negations and arrays."""
    if mask is None:
        return Structure()
    if isinstance(mask, masks.Window):
        return Structure(mask.left, mask.right)
    if isinstance(mask, masks.Segments):
        return Structure(q_segments_BT=mask.q_BT, k_segments_BS=mask.k_BS)
    if isinstance(mask, masks.Columns):
        return Structure(keep_BS=mask.keep_BS)
    if isinstance(mask, masks.And):
        a = structure_of(mask.a)
        b = structure_of(mask.b)
        if a is None or b is None:
            return None
        return _intersection(a, b)
    return None


def unsupported_arguments(args: Arguments) -> str:
    """Returns why no fused kernel can take this call, or an empty string."""
    if args.drops:
        return "the kernel drops no weights (attention dropout)"
    if args.has_slots:
        return "rows and columns are slots of a cache"
    if args.sharding.num_shards("T").count > 1:
        return "the sequence is split over mesh.context"
    return ""


def check_supported(name: str, reason: str, args: Arguments) -> Structure:
    """Returns the structure of a mask that a kernel supports.

    Args:
      name: the name of the kernel.
      reason: why the kernel cannot take the call, or "".
      args: the arguments of the call.

    Raises:
      ConfigError: there is a reason, or the mask has no such structure.
    """
    structure = structure_of(args.mask)
    if reason or structure is None:
        raise ConfigError(f"attention {name!r}: {reason}; {AUTO}.")
    return structure


def _intersection(a: Structure, b: Structure) -> Structure | None:
    """Returns the intersection, or None if both have documents."""
    if a.q_segments_BT is not None and b.q_segments_BT is not None:
        return None
    keep = a.keep_BS
    if keep is None:
        keep = b.keep_BS
    elif b.keep_BS is not None:
        keep = keep & b.keep_BS
    segmented = a if a.q_segments_BT is not None else b
    left = _smaller(a.left, b.left)
    right = _smaller(a.right, b.right)
    return Structure(left, right, segmented.q_segments_BT, segmented.k_segments_BS, keep)


def _smaller(a: int | None, b: int | None) -> int | None:
    """Returns the smaller bound, where None is no bound."""
    if a is None:
        return b
    if b is None:
        return a
    return min(a, b)
