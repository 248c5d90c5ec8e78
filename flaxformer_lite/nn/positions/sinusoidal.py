"""Sinusoidal: sines and cosines of geometrically spaced wavelengths, added to the embeddings."""

from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import Count, OneOf, Positive
from flaxformer_lite.nn.positions.encoding import Encoding, Table, Tables, add_encoding

Layout = Annotated[str, OneOf(("interleaved", "halves"))]


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Encoding):
    """`PE(pos, 2i) = sin(pos / base^(2i / D))`, `PE(pos, 2i + 1) = cos(pos / base^(2i / D))`.

    Reference: Vaswani et al. 2017, section 3.5 (arXiv:1706.03762).
    """

    base: Positive = 10000.0
    # sin, cos, sin, cos ... as in the paper; or halves: all sines first (Marian, Pegasus)
    layout: Layout = "interleaved"
    # whether the slowest frequency is 1 / base itself, base^(-i / (D/2 - 1)), as in fairseq
    inclusive: bool = False
    offset: Count = 0  # added to positions; fairseq's begin at 2
    zero_at: int | None = None  # a position, with the offset, that adds nothing: fairseq's padding

    def tables(
        self, *, d_model: int, num_heads: int, head_dim: int, max_length: int
    ) -> dict[str, Table]:
        if d_model % 2:
            raise ValueError(
                f"d_model={d_model}: sinusoidal positions need an even width; try {d_model + 1}."
            )
        return {}

    def embed(self, tables: Tables, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        positions_BT = positions_BT + self.offset
        width = x_BTD.shape[-1]
        pairs = width // 2
        last = max(1, pairs - 1) if self.inclusive else pairs
        exponents = np.arange(pairs) / last
        frequencies = self.base**-exponents
        # A float32 angle of a thousand radians is off by 3e-5. The frequency's first 12 bits times
        # a position below 4096 are exact, the rest is a small angle, and the two are combined by
        # the addition theorem.
        mantissa, exponent = np.frexp(frequencies)
        coarse = np.ldexp(np.round(mantissa * 4096) / 4096, exponent)
        positions_BT1 = positions_BT[:, :, None].astype(jnp.float32)
        parts_P = (jnp.asarray(f, jnp.float32) for f in (coarse, frequencies - coarse))
        a_BTP, b_BTP = (positions_BT1 * part_P[None, None, :] for part_P in parts_P)
        sin_BTP = jnp.sin(a_BTP) * jnp.cos(b_BTP) + jnp.cos(a_BTP) * jnp.sin(b_BTP)
        cos_BTP = jnp.cos(a_BTP) * jnp.cos(b_BTP) - jnp.sin(a_BTP) * jnp.sin(b_BTP)
        if self.layout == "halves":
            added_BTD = jnp.concatenate([sin_BTP, cos_BTP], axis=-1)
        else:
            added_BTD = jnp.stack([sin_BTP, cos_BTP], axis=-1).reshape(*positions_BT.shape, width)
        if self.zero_at is not None:
            added_BTD = jnp.where((positions_BT == self.zero_at)[:, :, None], 0.0, added_BTD)
        return add_encoding(x_BTD, added_BTD)
