"""Plain index: the position number, added to every feature.

The simplest encoding that could work.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flaxformer_lite.config import Positive
from flaxformer_lite.nn.positions.encoding import Encoding, Tables, add_encoding


@dataclass(frozen=True, kw_only=True)
class Index(Encoding):
    """`PE(pos, d) = pos / unit`: unbounded, and with `unit=1` soon larger than the embeddings.

    LayerNorm subtracts the mean over features, and so all of it; only models with RMSNorm see this
    encoding.
    """

    unit: Positive = 512.0  # number of positions over which the encoding grows by one

    def embed(self, tables: Tables, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        return add_encoding(x_BTD, positions_BT[:, :, None].astype(jnp.float32) / self.unit)
