"""Number formats of the weights in an exported file."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained.layouts import input_axes
from flaxformer_lite.pretrained.tensor_names import EXPERTS, VOCAB_KERNELS
from flaxformer_lite.types import Params

WEIGHTS = ("float32", "float16", "int8")
MIN_INT8_ELEMENTS = 1024  # elements; smaller arrays, such as biases, stay float32
LARGEST_HALF = float(np.finfo(np.float16).max)


class Quantized(NamedTuple):
    """A matrix of integers, and the factors that they are multiplied by."""

    integers: np.ndarray  # int8
    scale: np.ndarray  # float32, broadcasts against the integers


StoredWeights = dict[str, np.ndarray | Quantized]  # by path


def stored_as(weights: str, params: Params) -> StoredWeights:
    """Returns the parameters in the form of a file.

    Args:
      weights: `float32`, `float16`, or `int8`: matrices are integers times max|w| / 127, the
        maximum over a row of a table, and over the inputs of each output of other matrices.
      params: the model's parameters, layers side by side.

    Raises:
      ConfigError: `weights` is not one of these.
    """
    if weights not in WEIGHTS:
        raise ConfigError(f"weights={weights!r}: must be {', '.join(WEIGHTS)}.")
    flat: dict[str, jax.Array] = flatten_dict(params, sep="/")
    return {path: _stored(weights, path, np.asarray(x, np.float32)) for path, x in flat.items()}


def _stored(weights: str, path: str, x: np.ndarray) -> np.ndarray | Quantized:
    if weights == "float32" or x.size < MIN_INT8_ELEMENTS or x.ndim < 2:
        return x
    if weights == "float16":
        return np.clip(x, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
    largest = np.abs(x).max(axis=_summed(path, x.ndim), keepdims=True)
    scale = np.maximum(largest / 127, np.finfo(np.float32).tiny)
    return Quantized(np.rint(x / scale).astype(np.int8), scale)


def _summed(path: str, ndim: int) -> tuple[int, ...]:
    """Returns the axes that products with a parameter sum over, whose numbers share a scale."""
    if not path.endswith("/kernel") or path.endswith(VOCAB_KERNELS):
        return (ndim - 1,)
    first = int(EXPERTS in path)
    return tuple(range(first, first + input_axes(path)))


def widen_weights(stored: StoredWeights) -> Params:
    """Returns float32 parameters; in a traced function the file does this."""
    flat = {path: _widened(x) for path, x in stored.items()}
    return unflatten_dict(flat, sep="/")


def _widened(x: np.ndarray | Quantized) -> jax.Array:
    if isinstance(x, Quantized):
        return jnp.asarray(x.integers).astype(jnp.float32) * x.scale
    return jnp.asarray(x).astype(jnp.float32)
