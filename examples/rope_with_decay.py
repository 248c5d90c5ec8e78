"""A position encoding with two hooks, written outside the package: rotary phases, and a learned
decay with distance.

    flaxformer_lite train --config=gpt2_tiny --workdir=runs/decay \
        --config.model.position.name=examples.rope_with_decay:RopeWithDecay

Sun et al. 2022, "A Length-Extrapolatable Transformer" (arXiv:2212.10554), combine the two in this
way.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.positions.encoding import Table, relative_positions
from flaxformer_lite.nn.positions.rope import Rope


@dataclass(frozen=True, kw_only=True)
class RopeWithDecay(Rope):
    """Rope, and `bias = -softplus(s_n) |q_pos - k_pos|` with a learned s for each head."""

    by_distance: ClassVar[bool] = True

    # initial s of every head, approximately; softplus turns it into a slope of 0.05
    start: float = -3.0

    def tables(self, *, d_model, num_heads, head_dim, max_length):
        return super().tables(
            d_model=d_model, num_heads=num_heads, head_dim=head_dim, max_length=max_length
        ) | {"slope": Table((num_heads,), "N", "zeros", hook="bias")}

    def bias(self, tables, q_BTNH, q_positions_BT, k_positions_BS, *, bidirectional):
        slope_N = jax.nn.softplus(tables["slope"].astype(jnp.float32) + self.start)
        distance_BTS = jnp.abs(relative_positions(q_positions_BT, k_positions_BS)).astype(
            jnp.float32
        )
        return -slope_N[None, :, None, None] * distance_BTS[:, None]
