"""Plain index: the number of the position, added to every feature; the simplest thing that could work."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from flaxformer_lite.positions.encoding import Encoding, Tables, add


@dataclass(frozen=True, kw_only=True)
class Index(Encoding):
    """`PE(pos, d) = pos / unit`: unbounded, and with `unit=1` soon larger than the embeddings themselves."""

    unit: float = 512.0  # positions that add one

    def __post_init__(self) -> None:
        if self.unit <= 0:
            raise ValueError(f"unit={self.unit}: the positions that add one, hence positive.")

    def embed(self, tables: Tables, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        return add(x_BTD, positions_BT[:, :, None].astype(jnp.float32) / self.unit)
