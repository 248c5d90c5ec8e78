"""Binary: the bits of the position, least significant first.

Sinusoids are the smooth counterpart.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.positions.encoding import Encoding, Tables, add_encoding

POSITION_BITS = 31  # of a nonnegative int32


@dataclass(frozen=True, kw_only=True)
class Binary(Encoding):
    """`PE(pos, d) = floor(pos / 2^d) mod 2`; zero where a position has no further bits."""

    def embed(self, tables: Tables, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        width = x_BTD.shape[-1]
        shifts_11D = jnp.arange(min(width, POSITION_BITS), dtype=jnp.int32)[None, None, :]
        bits_BTD = (positions_BT[:, :, None].astype(jnp.int32) >> shifts_11D) & 1
        return add_encoding(
            x_BTD, jnp.pad(bits_BTD, ((0, 0), (0, 0), (0, max(width - POSITION_BITS, 0))))
        )
