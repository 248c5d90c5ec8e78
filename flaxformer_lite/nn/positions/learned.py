"""Learned: a table with one row per position (GPT-2, BERT)."""

from dataclasses import dataclass

import jax

from flaxformer_lite.config import Count
from flaxformer_lite.nn.functions.embedding import take_rows
from flaxformer_lite.nn.positions.encoding import Encoding, Table, Tables, add_encoding


@dataclass(frozen=True, kw_only=True)
class Learned(Encoding):
    """`PE(pos) = table[pos + offset]`.

    A position beyond the table gives NaN, so that it cannot go unnoticed.

    Reference: Gehring et al. 2017, section 3.1 (arXiv:1705.03122).
    """

    offset: Count = 0  # rows before position 0: 2 in OPT, BART and RoBERTa

    def tables(
        self, *, d_model: int, num_heads: int, head_dim: int, max_length: int
    ) -> dict[str, Table]:
        return {"position": Table((max_length + self.offset, d_model), "TD")}

    def span(self, max_length: int) -> range:
        return range(-self.offset, max_length)

    def embed(self, tables: Tables, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        table_TD = tables["position"]
        capacity = table_TD.shape[0] - self.offset
        if isinstance(x_BTD.shape[1], int) and x_BTD.shape[1] > capacity:
            raise ValueError(
                f"{x_BTD.shape[1]} tokens, but the position table ends at max_length={capacity}:"
                " shorten the examples or raise model.max_length."
            )
        return add_encoding(x_BTD, take_rows(table_TD, positions_BT + self.offset))
