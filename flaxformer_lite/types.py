"""Types that signatures all over the package share."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

Array = jax.Array | np.ndarray
# Arrays by name, or mappings of them: the parameters of a module, as linen nests them. Functions
# that say so take shapes (jax.ShapeDtypeStruct) or shardings in their place.
Params = Mapping[str, Any]
# {"inputs": ..., "targets": ...}, or their shapes where nothing is computed.
Batch = Mapping[str, Mapping[str, jax.Array]]


class Shaped(Protocol):
    """An array, or what stands for one: jax.ShapeDtypeStruct, an array that is not yet read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


# Any nesting of containers with arrays as leaves; the same in and out.
Tree = TypeVar("Tree")
