"""Types for signatures in all parts of the package."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

Array = jax.Array | np.ndarray
# The parameters of a module: arrays by name, nested as in linen. Functions that say so also take
# shapes (jax.ShapeDtypeStruct) or shardings in place of arrays.
Params = Mapping[str, Any]
# Arrays of a batch by name, as inputs and targets are.
Arrays = Mapping[str, jax.Array]
# {"inputs": ..., "targets": ...}, or their shapes where nothing is computed.
Batch = Mapping[str, Arrays]
# What evaluation keeps of the outputs for all examples, [N, ...] by name.
Predictions = Mapping[str, np.ndarray]


class Shaped(Protocol):
    """An array, or a description of one: jax.ShapeDtypeStruct, an array that is not read yet."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


# Any nesting of containers with arrays as leaves; the same in and out.
Tree = TypeVar("Tree")
