"""What a layer must know of its tokens, computed once per stack and passed down beside the residual stream."""

from typing import Any

import flax
import jax


class Context(flax.struct.PyTreeNode):
    """Arrays and masks, so that scan and remat take it. None means "nothing to say".

    Attributes:
      mask: a Mask of functions/masks.py or a boolean array; who may attend to whom. A causal layer hides later columns
        on top of it, unless `structured`.
      cross_mask: the same, from decoder rows to encoder columns.
      position_ids_BT: int32, [1, T] or [B, T]; None counts from the first slot.
      segment_ids_BT: int32, the document of each token, 0 is padding: for mixers that are no attention.
      keep_BT: bool, False where a token is padding: likewise.
      bias: what is added to the logits of self-attention, [1, N, T, S], where it is the same in all layers and held whole.
      tables: the learned arrays of a bias that layers ask for block by block.
      columns_BS: positions of the slots, for biases, where padding between tokens makes them other than the slots' numbers.
      phase: rotation of queries and keys.
      index: the first row's slot in the cache, int32 scalar; None is the cache's length.
      encoder_output_BSD: what cross-attention reads; None once the cache holds its keys and values.
      structured: whether `mask` says itself what of the later columns a causal layer shows, as that of a prefix-LM does.
      first: whether nothing lies in the cache before the rows.
      prepared: whether a stack has made what its mixers share.
    """

    mask: Any = None
    cross_mask: Any = None
    position_ids_BT: jax.Array | None = None
    segment_ids_BT: jax.Array | None = None
    keep_BT: jax.Array | None = None
    bias: Any = None
    tables: Any = None
    columns_BS: jax.Array | None = None
    phase: Any = None
    index: jax.Array | None = None
    encoder_output_BSD: jax.Array | None = None
    structured: bool = flax.struct.field(pytree_node=False, default=False)
    first: bool = flax.struct.field(pytree_node=False, default=False)
    prepared: bool = flax.struct.field(pytree_node=False, default=False)


def with_options(context: Context | None, **options: Any) -> Context:
    """The context, or a new one, with those options that are not None: what a call on a lone module is made of."""
    given = {name: value for name, value in options.items() if value is not None}
    return (context or Context()).replace(**given)
