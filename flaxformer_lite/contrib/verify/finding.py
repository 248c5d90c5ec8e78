"""Findings of checks, and the differences that they measure."""

import builtins
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.types import Array, Tree

EXACT = 0.0  # of one program on other numbers that it must not read
# relative to the largest number; other summation orders in float32 give 1e-7 to 1e-5
ROUNDING = 1e-4
# relative to the largest gradient; smaller ones are compared with this, as a key's bias has
# gradient zero, of which rounding leaves 1e-8
NOISE = 1e-2


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
      property: what was checked.
      difference: the largest difference that was found, relative to the largest number unless `why`
        says otherwise; None if the check does not apply.
      bound: the difference up to which the property holds.
      why: what was compared, why the check does not apply, or why the published model differs too.
      published: whether the model that the family was published with lacks the property as well.
    """

    property: str
    difference: float | None
    bound: float
    why: str = ""
    published: bool = False

    @builtins.property
    def verdict(self) -> str:
        """`holds`, `as published`, `not checked` or `FAULT`."""
        if self.difference is None:
            return "not checked"
        if self.difference <= self.bound:
            return "holds"
        if self.published:
            return "as published"
        return "FAULT"


def relative_difference(got: Array, due: Array, least: float = 0.0) -> float:
    """Returns the largest difference of two arrays, relative to the largest number that is due.

    Args:
      got, due: arrays of one shape; NaN differs from every number, and infinities from all others.
      least: the number to divide by if it is larger.
    """
    got = np.asarray(got, np.float32)
    due = np.asarray(due, np.float32)
    apart = np.abs(np.subtract(got, due, where=got != due, out=np.zeros_like(due)))
    distance = float(apart.max(initial=0.0))
    if distance == 0:
        return 0.0
    largest = float(np.abs(due).max(initial=0.0, where=np.isfinite(due)))
    if not math.isfinite(distance) or not max(largest, least):
        return math.inf
    return distance / max(largest, least)


def gradient_noise(due: Tree) -> float:
    """Returns the number below which the gradients of a tree are noise."""
    leaves = filter(is_gradient, jax.tree.leaves(due))
    return NOISE * max(float(np.abs(leaf).max(initial=0.0)) for leaf in leaves)


def tree_difference(got: Tree, due: Tree) -> float:
    """Returns the largest relative difference of the gradients of a parameter."""
    noise = gradient_noise(due)
    differences = [0.0]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(due), strict=True):
        if is_gradient(b):
            differences.append(relative_difference(a, b, noise))
    return max(differences)


def is_gradient(leaf: Array) -> bool:
    """Returns whether a leaf has a gradient: the integer codes of a quantized matrix have none."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)
