"""The base class of position encodings.

An encoding is a frozen dataclass of hyperparameters with three hooks into the model.

`embed` changes the token embeddings, `phase` rotates queries and keys, `bias` adds to the attention
logits. An encoding overrides the hooks it needs, one or several; the others do nothing. Its learned
arrays, if any, are declared by `tables` and owned by the model, which passes them to the hooks.
"""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.config import Record
from flaxformer_lite.nn.functions.rotary import Phase

Tables = dict[str, jax.Array]
HOOKS = ("embed", "phase", "bias")


class Table(NamedTuple):
    """A learned array that an encoding needs."""

    shape: tuple[int, ...]
    axes: str  # letters of flaxformer_lite.axes
    # the model's own `normal`, `zeros`, `ones`, or a standard deviation
    init: str | float = "normal"
    hook: str = ""  # the hook that reads it; empty: the first one that the encoding overrides


@dataclass(frozen=True, kw_only=True)
class Encoding(Record):
    """Base class of all encodings; by itself it encodes no position."""

    per_layer: ClassVar[bool] = False  # whether every layer has its own tables, and so its own bias
    by_distance: ClassVar[bool] = False  # whether the bias depends only on how far ahead a key is
    # whether positions enter the bias only as differences, which slots have as well
    by_difference: ClassVar[bool] = True

    def tables(
        self, *, d_model: int, num_heads: int, head_dim: int, max_length: int
    ) -> dict[str, Table]:
        """Declares the learned arrays, by name."""
        return {}

    def span(self, max_length: int) -> range | None:
        """Returns the positions that a table has rows for, or None if any position is allowed."""
        return None

    def embed(self, tables: Tables, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """Adds positions to token embeddings, keeping their dtype.

        `positions_BT` may have one row for all examples.
        """
        return x_BTD

    def phase(self, positions_BT: jax.Array, head_dim: int) -> Phase | None:
        """Returns the angles by which queries and keys at these positions are rotated, or None."""
        return None

    def bias(
        self,
        tables: Tables,
        q_BTNH: jax.Array,
        q_positions_BT: jax.Array,
        k_positions_BS: jax.Array,
        *,
        bidirectional: bool,
    ) -> jax.Array | None:
        """Returns float32 logits [B or 1, N, T, S] to add to the scaled dot products, or None.

        Args:
          tables: the learned arrays.
          q_BTNH: the queries of these rows; gives the number of heads and, in Shaw's encoding, the
            content.
          q_positions_BT: positions of the rows; a single row applies to all examples.
          k_positions_BS: positions of the columns.
          bidirectional: whether attention looks both ways, instead of only at positions up to its
            own.
        """
        return None

    def attention_bias(
        self,
        tables: Tables,
        q_positions_BT: jax.Array,
        k_positions_BS: jax.Array,
        *,
        bidirectional: bool,
    ) -> "Bias | None":
        """Returns the `bias` argument of `attend`, or None if the encoding has no bias."""
        if "bias" not in list_hooks(self):
            return None
        return Bias(tables, q_positions_BT, k_positions_BS, self, bidirectional)


def list_hooks(encoding: Encoding) -> tuple[str, ...]:
    """Lists the hooks among `embed`, `phase` and `bias` that an encoding overrides."""
    return tuple(
        name for name in HOOKS if getattr(type(encoding), name) is not getattr(Encoding, name)
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Bias:
    """An encoding's bias as `attend` takes it: a function of (q, rows, columns).

    It is evaluated block by block.

    Attributes:
      q_positions_BT, k_positions_BS: positions of the rows of `q` and the columns of `k` as passed
        to `attend`; in cached decoding, of the new tokens and of every slot.
      bidirectional: whether attention looks both ways.
      consecutive: whether rows and columns have consecutive positions; False if padding may stand
        between tokens.
    """

    tables: Tables
    q_positions_BT: jax.Array
    k_positions_BS: jax.Array
    encoding: Encoding = field(metadata={"static": True})
    bidirectional: bool = field(metadata={"static": True})
    consecutive: bool = field(default=True, metadata={"static": True})

    def __call__(self, q_BTNH: jax.Array, rows_T: jax.Array, columns_S: jax.Array, /) -> jax.Array:
        q_positions_BT = jnp.take(self.q_positions_BT, rows_T, axis=1, mode="clip")
        k_positions_BS = jnp.take(self.k_positions_BS, columns_S, axis=1, mode="clip")
        return self._of(q_BTNH, q_positions_BT, k_positions_BS)

    def _of(
        self, q_BTNH: jax.Array, q_positions_BT: jax.Array, k_positions_BS: jax.Array
    ) -> jax.Array:
        positions = (q_positions_BT, k_positions_BS)
        bias = self.encoding.bias(self.tables, q_BTNH, *positions, bidirectional=self.bidirectional)
        assert bias is not None, "attention_bias gives none of an encoding without"
        return bias

    @property
    def by_distance(self) -> bool:
        return self.encoding.by_distance and self.consecutive

    def of_distance(self, q_BTNH: jax.Array, T: int, S: int) -> jax.Array:
        """Returns the bias by distance, [N, T + S], entry T - 1 + column - row.

        The positions must be consecutive.
        """
        first = self.k_positions_BS[:1, :1] - self.q_positions_BT[:1, :1]
        ahead_1L = first + jnp.arange(1 - T, S + 1, dtype=jnp.int32)[None]
        return self._of(q_BTNH[:1, :1], jnp.zeros((1, 1), jnp.int32), ahead_1L)[0, :, 0]


def relative_positions(q_positions_BT: jax.Array, k_positions_BS: jax.Array) -> jax.Array:
    """Computes how far each key is ahead of each query.

    Returns:
      int32 [B, T, S], `k_pos - q_pos`.
    """
    return k_positions_BS[:, None, :] - q_positions_BT[:, :, None]


def add_encoding(x_BTD: jax.Array, encoding_BTD: jax.Array) -> jax.Array:
    """Adds in the dtype of `x_BTD`; an encoding with a single row applies to all examples."""
    return x_BTD + encoding_BTD.astype(x_BTD.dtype)
