"""ALiBi: a penalty that grows with distance, with a fixed slope for each head.

Nothing is learned.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.nn.positions.encoding import Encoding, Tables, relative_positions


@dataclass(frozen=True, kw_only=True)
class Alibi(Encoding):
    """`bias = -m_n |q_pos - k_pos|` with slopes `m_n = 2^(-max_bias n / N)`, n = 1..N.

    If N is not a power of two, the slopes are those of the power below, then every other one of the
    power above.

    Reference: Press et al. 2022, section 3 (arXiv:2108.12409).
    """

    by_distance: ClassVar[bool] = True

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
        slopes_N = jnp.asarray(slopes(q_BTNH.shape[2], self.max_bias), jnp.float32)
        distance_BTS = jnp.abs(relative_positions(q_positions_BT, k_positions_BS)).astype(
            jnp.float32
        )
        return -slopes_N[None, :, None, None] * distance_BTS[:, None]


def slopes(num_heads: int, max_bias: float = 8.0) -> np.ndarray:
    """Returns one slope per head: `slopes(8)` is 1/2, 1/4 ... 1/256."""
    power = 2 ** math.floor(math.log2(num_heads))
    regular = 2.0 ** (-max_bias * np.arange(1, power + 1) / power)
    between = 2.0 ** (-max_bias * np.arange(1, 2 * power + 1, 2) / (2 * power))
    return np.concatenate([regular, between[: num_heads - power]])
