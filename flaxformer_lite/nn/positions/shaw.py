"""Shaw: a learned vector for every clipped distance, multiplied with the query like a key."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from flaxformer_lite.config import Size
from flaxformer_lite.nn.positions.encoding import Encoding, Table, Tables, relative_positions


@dataclass(frozen=True, kw_only=True)
class Shaw(Encoding):
    """`bias_ij = q_i . a_clip(j - i, -k, k) / sqrt(H)`, with one table per layer.

    This is the key term of relative attention.

    The paper's second term, on the values, is left out: its ablation (table 3) finds no gain from
    it.

    Reference: Shaw et al. 2018, equations 4 and 5 (arXiv:1803.02155).
    """

    per_layer: ClassVar[bool] = True

    max_distance: Size = 16  # k: distances beyond it count as k

    def tables(
        self, *, d_model: int, num_heads: int, head_dim: int, max_length: int
    ) -> dict[str, Table]:
        return {"key": Table((2 * self.max_distance + 1, head_dim), "RH")}

    def bias(
        self,
        tables: Tables,
        q_BTNH: jax.Array,
        q_positions_BT: jax.Array,
        k_positions_BS: jax.Array,
        *,
        bidirectional: bool,
    ) -> jax.Array:
        key_RH = tables["key"].astype(q_BTNH.dtype)
        dots_BNTR = jnp.einsum("BTNH,RH->BNTR", q_BTNH, key_RH, preferred_element_type=jnp.float32)
        ahead_BTS = jnp.clip(
            relative_positions(q_positions_BT, k_positions_BS),
            -self.max_distance,
            self.max_distance,
        )
        bucket_B1TS = (ahead_BTS + self.max_distance)[:, None]
        return jnp.take_along_axis(dots_BNTR, bucket_B1TS, axis=-1) * q_BTNH.shape[-1] ** -0.5
