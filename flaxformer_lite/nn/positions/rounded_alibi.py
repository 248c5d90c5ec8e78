"""ALiBi as Falcon computes it: of each key's position, rounded to bfloat16, before the scale."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.positions.alibi import slopes
from flaxformer_lite.nn.positions.encoding import Encoding, Tables

# of bfloat16
EXPONENT_BITS = 8
MANTISSA_BITS = 7


@dataclass(frozen=True, kw_only=True)
class RoundedAlibi(Encoding):
    """`bias = bfloat16(m_n k_pos) / sqrt(H)`, with the slopes `m_n` of `Alibi`.

    All keys of a query are shifted alike, so without the rounding a softmax over earlier keys would
    be that of `-m_n (q_pos - k_pos) / sqrt(H)`. With it, positions beyond 256 fall together, and
    distances between the same two tokens change along a text, as in the weights' training.

    Reference: transformers 5.23, models/falcon/modeling_falcon.py, `build_alibi_tensor`.
    """

    by_difference: ClassVar[bool] = False

    max_bias: float = 8.0

    def bias(
        self,
        tables: Tables,
        q_BTNH: jax.Array,
        q_positions_BT: jax.Array,
        k_positions_BS: jax.Array,
        *,
        bidirectional: bool,
    ) -> jax.Array:
        slopes_N = _rounded(jnp.asarray(slopes(q_BTNH.shape[2], self.max_bias), jnp.float32))
        positions_BS = _rounded(k_positions_BS.astype(jnp.float32))
        shift_BNS = _rounded(slopes_N[None, :, None] * positions_BS[:, None])
        shift_BNTS = shift_BNS[:, :, None] * q_BTNH.shape[3] ** -0.5
        rows = (shift_BNTS.shape[0], slopes_N.shape[0], q_positions_BT.shape[1])
        return jnp.broadcast_to(shift_BNTS, (*rows, positions_BS.shape[1]))


def _rounded(x: jax.Array) -> jax.Array:
    """Rounds to bfloat16; a cast there and back may be removed by XLA."""
    return jax.lax.reduce_precision(x, EXPONENT_BITS, MANTISSA_BITS)
