"""The learned tables of a position encoding, as parameters."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Execution, InitConfig
from flaxformer_lite.positions.encoding import Encoding, Table, hooks


class PositionTables(nn.Module):
    """Declares the tables that one hook of an encoding reads; the encoding itself is a pure function of them.

    Attributes:
      encoding: the position encoding.
      hook: the hook that reads the tables: `embed` or `bias`.
      d_model, num_heads, head_dim, max_length: sizes of the model, which determine those of the tables.
      initial: initialization of tables that name no distribution of their own.
      execution: gives the tables' dtype.
    """

    encoding: Encoding
    hook: str
    d_model: int
    num_heads: int
    head_dim: int
    max_length: int
    initial: InitConfig = InitConfig()
    execution: Execution = Execution()

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        tables = self.encoding.tables(
            d_model=self.d_model, num_heads=self.num_heads, head_dim=self.head_dim, max_length=self.max_length
        )
        dtype = jnp.dtype(self.execution.param_dtype)
        return {
            name: self.param(name, self._initializer(table), table.shape, dtype)
            for name, table in tables.items()
            if self.hook == (table.hook or hooks(self.encoding)[0])
        }

    def _initializer(self, table: Table) -> Callable[..., jax.Array]:
        if table.init == "zeros":
            return nn.initializers.zeros
        return nn.initializers.normal(self.initial.stddev if table.init == "normal" else table.init)
