"""Learned positions on the embeddings together with T5's buckets in attention (MPNet)."""

from dataclasses import dataclass

import jax

from flaxformer_lite.nn.positions.encoding import Table, Tables
from flaxformer_lite.nn.positions.learned import Learned
from flaxformer_lite.nn.positions.t5_buckets import T5Buckets


@dataclass(frozen=True, kw_only=True)
class LearnedT5Buckets(T5Buckets):
    """`PE(pos) = table[pos]`, and `bias = table[bucket(k_pos - q_pos), n]`.

    Reference: Song et al. 2020, section 2.4 and appendix A (arXiv:2004.09297).
    """

    def tables(
        self, *, d_model: int, num_heads: int, head_dim: int, max_length: int
    ) -> dict[str, Table]:
        sizes = {"d_model": d_model, "num_heads": num_heads, "head_dim": head_dim}
        rows = Learned().tables(**sizes, max_length=max_length)
        buckets = super().tables(**sizes, max_length=max_length)
        tables = {}
        for name, table in rows.items():
            tables[name] = table._replace(hook="embed")
        for name, table in buckets.items():
            tables[name] = table._replace(hook="bias")
        return tables

    def span(self, max_length: int) -> range:
        return Learned().span(max_length)

    def embed(self, tables: Tables, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        return Learned().embed(tables, x_BTD, positions_BT)
