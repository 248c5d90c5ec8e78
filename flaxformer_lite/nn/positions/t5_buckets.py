"""T5 position buckets: a learned logit per head and bucket of relative distance, finer nearby."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import Size
from flaxformer_lite.nn.positions.encoding import Encoding, Table, Tables, relative_positions


@dataclass(frozen=True, kw_only=True)
class T5Buckets(Encoding):
    """`bias = table[bucket(k_pos - q_pos), n]`, shared by all layers or one table per layer (UMT5).

    Reference: Raffel et al. 2020, section 2.1 (arXiv:1910.10683).
    """

    by_distance: ClassVar[bool] = True

    num_buckets: Size = 32
    max_distance: Size = 128  # distances from here on share the last bucket
    per_layer: bool = False  # type: ignore[misc]  # a field here, in others a constant of the class

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_buckets < 4 or self.num_buckets % 2:
            raise ValueError(
                f"num_buckets={self.num_buckets}: must be even (half for each direction) and at"
                " least 4."
            )
        if self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"max_distance={self.max_distance}, num_buckets={self.num_buckets}: must exceed"
                f" half the buckets; try max_distance={4 * self.num_buckets}."
            )

    def tables(
        self, *, d_model: int, num_heads: int, head_dim: int, max_length: int
    ) -> dict[str, Table]:
        return {"relative": Table((self.num_buckets, num_heads), "RN", d_model**-0.5)}

    def bias(
        self,
        tables: Tables,
        q_BTNH: jax.Array,
        q_positions_BT: jax.Array,
        k_positions_BS: jax.Array,
        *,
        bidirectional: bool,
    ) -> jax.Array:
        ahead_BTS = relative_positions(q_positions_BT, k_positions_BS)
        bucket_BTS = buckets(
            ahead_BTS, self.num_buckets, self.max_distance, bidirectional=bidirectional
        )
        bias_BTSN = jnp.take(tables["relative"].astype(jnp.float32), bucket_BTS, axis=0)
        return jnp.moveaxis(bias_BTSN, -1, 1)


def buckets(
    ahead: jax.Array, num_buckets: int, max_distance: int, *, bidirectional: bool
) -> jax.Array:
    """Assigns relative distances to buckets.

    Short distances have a bucket each, longer ones up to `max_distance` share buckets on a
    logarithmic scale, and all beyond are in the last bucket.

    Args:
      ahead: `k_pos - q_pos`, int32 of any shape; the result has the same shape.
      num_buckets: R; if bidirectional, the upper half is for keys ahead of their query.
      max_distance: the distance from which on all keys share the last bucket.
      bidirectional: whether keys may be ahead; otherwise keys ahead count as distance 0.
    """
    if bidirectional:
        num_buckets //= 2
        first = jnp.where(ahead > 0, num_buckets, 0)
        distance = jnp.abs(ahead)
    else:
        first = jnp.asarray(0, jnp.int32)
        distance = jnp.maximum(-ahead, 0)
    return first + jnp.take(_bucket_of_distance(num_buckets, max_distance), distance, mode="clip")


def _bucket_of_distance(num_buckets: int, max_distance: int) -> jax.Array:
    """Tabulates the buckets of distances 0..max_distance, int32 [max_distance + 1].

    A table, computed by numpy, does not depend on how a compiler rounds logarithms.
    """
    exact = num_buckets // 2
    distance = np.arange(max_distance + 1)
    # In float32, as in the code that the published weights were trained with.
    logs = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    coarse = exact + (
        logs / np.float32(np.log(max_distance / exact)) * (num_buckets - exact)
    ).astype(np.int32)
    return jnp.asarray(
        np.where(distance < exact, distance, np.minimum(coarse, num_buckets - 1)), jnp.int32
    )
