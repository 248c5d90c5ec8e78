"""The matrices of hidden layers, and which of their axes are inputs, outputs, or neither."""

import functools
import math
import re
from collections.abc import Callable

import jax
import optax
from optax import contrib

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.sharding.parameters import path_of

PROJECTION = re.compile(r"(^|/)(query|key|value|out|up|gate|down)/kernel$")
STACKED = re.compile(r"(^|/)layers/")  # of scanned layers, which have a leading axis
EXPERTS = re.compile(r"(^|/)experts/")  # which have another one


def split(
    matrices: optax.GradientTransformation, others: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Updates matrices of hidden layers by one rule, and by another one all other parameters.

    The others are tables, output heads, norms, biases and the routers of experts.
    """

    def label(keys: tuple, _: object) -> str:
        return "muon" if PROJECTION.search(path_of(keys)) else "adam"

    labels = functools.partial(jax.tree_util.tree_map_with_path, label)
    return optax.partition({"muon": matrices, "adam": others}, labels)


def adam(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds what the others are updated by."""
    return optax.scale_by_adam(cfg.b1, cfg.b2, cfg.eps)


def orthogonal(
    cfg: OptimizerConfig, size: Callable[[int, int], float]
) -> optax.GradientTransformation:
    """Updates matrices by Muon's orthogonal ones, times a size, and by Adam all other parameters.

    Args:
      cfg: has the decays of both.
      size: function from the numbers of a matrix's inputs and outputs.
    """
    muon = contrib.scale_by_muon(beta=cfg.b1, weight_dimension_numbers=dimension_numbers)

    def scale(update: jax.Array, numbers: contrib.MuonDimensionNumbers) -> jax.Array:
        return update * size(*fans(update, numbers))

    def resize(updates: optax.Updates, _: object) -> optax.Updates:
        return jax.tree.map(scale, updates, dimension_numbers(updates))

    return split(optax.chain(muon, optax.stateless(resize)), adam(cfg))


def dimension_numbers(params: optax.Params) -> optax.Params:
    """Returns the axes of each matrix: of its inputs and of its outputs.

    An attention's query is `DNH`, so its outputs are two axes; its output is `NHD`. The axes of
    scanned layers and of experts are neither, so that each layer and each expert is a matrix.
    """

    def numbers(keys: tuple, matrix: jax.Array) -> contrib.MuonDimensionNumbers:
        path = path_of(keys)
        rank = len(matrix.shape) - stacked_axes(path)
        if rank == 2:
            return contrib.MuonDimensionNumbers((-2,), (-1,))
        if path.endswith("out/kernel"):
            return contrib.MuonDimensionNumbers(tuple(range(-rank, -1)), (-1,))
        return contrib.MuonDimensionNumbers((-rank,), tuple(range(1 - rank, 0)))

    return jax.tree_util.tree_map_with_path(numbers, params)


def stacked_axes(path: str) -> int:
    """Returns the number of leading axes that a parameter has for scanned layers and experts."""
    return bool(STACKED.search(path)) + bool(EXPERTS.search(path))


def fans(matrix: jax.Array, numbers: contrib.MuonDimensionNumbers) -> tuple[int, int]:
    """Returns the sizes of a matrix: of its inputs and of its outputs."""
    fan_in = math.prod(matrix.shape[axis] for axis in numbers.reduction_axis)
    fan_out = math.prod(matrix.shape[axis] for axis in numbers.output_axis)
    return fan_in, fan_out
