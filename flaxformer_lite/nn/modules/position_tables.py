"""The learned tables of a position encoding, as parameters."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Execution, InitConfig
from flaxformer_lite.nn.positions.encoding import Encoding, Table, hooks


class PositionTables(nn.Module):
    """Declares the tables that one hook of an encoding reads.

    The encoding itself is a pure function of them.

    The sizes of the model determine those of the tables.
    """

    encoding: Encoding
    hook: str  # the hook that reads the tables: `embed` or `bias`
    d_model: int
    num_heads: int
    head_dim: int
    max_length: int
    initial: InitConfig = InitConfig()  # of tables that name no distribution of their own
    execution: Execution = Execution()

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        sizes = {
            name: getattr(self, name) for name in ("d_model", "num_heads", "head_dim", "max_length")
        }
        dtype = jnp.dtype(self.execution.param_dtype)
        first = next(iter(hooks(self.encoding)), "")
        params = {}
        for name, table in self.encoding.tables(**sizes).items():
            if self.hook == (table.hook or first):
                params[name] = self.param(name, self._initializer(table), table.shape, dtype)
        return params

    def _initializer(self, table: Table) -> Callable[..., jax.Array]:
        if table.init == "zeros":
            return nn.initializers.zeros
        if table.init == "ones":
            return nn.initializers.ones
        stddev = self.initial.stddev if table.init == "normal" else table.init
        return nn.initializers.normal(stddev)
