"""Types for signatures in all parts of the package."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

Array = jax.Array | np.ndarray
# The parameters of a module: arrays by name, nested as in linen. Functions that say so also take
# shapes (jax.ShapeDtypeStruct) or shardings in place of arrays.
Params = Mapping[str, Any]
# {"inputs": ..., "targets": ...}, or their shapes where nothing is computed.
Batch = Mapping[str, Mapping[str, jax.Array]]


class Shaped(Protocol):
    """An array, or a description of one: jax.ShapeDtypeStruct, an array that is not read yet."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


# Any nesting of containers with arrays as leaves; the same in and out.
Tree = TypeVar("Tree")
