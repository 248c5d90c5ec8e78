"""What a layer must know of its tokens, computed once per stack and passed down beside the residual stream."""

from typing import Any

import flax
import jax


@flax.struct.dataclass
class Context:
    """Arrays only, so that scan and remat take it. None means "nothing to say".

    Attributes:
      mask: a Mask of functions/masks.py or a boolean array; who may attend to whom.
      cross_mask: the same, from decoder rows to encoder columns.
      bias: what is added to the logits of self-attention, [1, N, T, S], where it is the same in all layers and held whole.
      tables: the learned arrays of a bias that layers ask for block by block.
      phase: rotation of queries and keys.
      index: the first row's slot in the cache, int32 scalar.
      encoder_output_BSD: what cross-attention reads; None once the cache holds its keys and values.
    """

    mask: Any = None
    cross_mask: Any = None
    bias: Any = None
    tables: Any = None
    phase: Any = None
    index: jax.Array | None = None
    encoder_output_BSD: jax.Array | None = None
