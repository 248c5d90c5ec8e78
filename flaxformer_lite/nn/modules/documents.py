"""Document starts and padding, derived from a mask for layers that go token by token."""

import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError
from flaxformer_lite.nn.attentions.arguments import check_mask, check_slots
from flaxformer_lite.nn.attentions.mask_structure import structure_of
from flaxformer_lite.nn.functions.masks import Mask
from flaxformer_lite.nn.modules.context import Context


def with_documents(context: Context, x_BTD: jax.Array, *, causal: bool) -> Context:
    """Sets `starts_BT` and `keep_BT` from the mask.

    Each stays None where nothing starts or nothing is padding.

    Raises:
      ConfigError: a reader from left to right (`causal`), or of both ways, cannot follow the mask:
        it is a window or a prefix, or an array.
    """
    batch, length = x_BTD.shape[:2]
    structure = None
    if context.mask is None or isinstance(context.mask, Mask):
        structure = structure_of(context.mask)
    right = (None, 0) if causal else (None,)
    if (
        structure is None
        or structure.left is not None
        or structure.right not in right
        or structure.k_segments_BS is not None
    ):
        raise ConfigError(
            "mask, prefix_mask, windows: a recurrent layer reads token by token, and a convolution"
            " neighbours, so they follow padding and segments, and causal in a decoder, but no"
            " prefix, window or array; leave those out, or use attention."
        )
    if context.index is None:
        check_mask(context.mask, batch, length, length)
    else:
        check_slots(context.mask, length)

    def of_call(x_BS: jax.Array) -> jax.Array:
        x_BS = jnp.broadcast_to(x_BS, (batch, x_BS.shape[1]))
        if context.index is None or context.first:
            return x_BS[:, :length]
        return jax.lax.dynamic_slice_in_dim(x_BS, context.index, length, axis=1)

    ids_BS = structure.q_segments_BT
    keep_BT = None if structure.keep_BS is None else of_call(structure.keep_BS)
    if ids_BS is None:
        return context.replace(keep_BT=keep_BT)
    real_BT = of_call(ids_BS) != 0
    before_BS = jnp.pad(ids_BS, ((0, 0), (1, 0)))[:, :-1]
    starts_BT = of_call(ids_BS != before_BS) & real_BT
    return context.replace(
        starts_BT=starts_BT, keep_BT=real_BT if keep_BT is None else keep_BT & real_BT
    )
