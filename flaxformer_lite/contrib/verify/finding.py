"""Findings of checks, and the differences that they measure."""

import builtins
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.types import Array, Tree

EXACT_BOUND = 0.0  # of one program on other numbers that it must not read
# relative to the largest number; other summation orders in float32 give 1e-7 to 1e-5
ROUNDING_BOUND = 1e-4
# relative to the largest number of a tree; smaller leaves are compared with this, as a key's bias
# has gradient zero, of which rounding leaves 1e-8
NOISE_SHARE = 1e-2


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
        return "as published" if self.published else "FAULT"


def compare(
    name: str,
    got: Tree,
    due: Tree,
    why: str = "",
    published: bool = False,
    bound: float = ROUNDING_BOUND,
) -> Finding:
    """Returns the finding that two trees are equal up to a bound."""
    return Finding(name, tree_difference(got, due), bound, why, published)


def relative_difference(got: Array, due: Array, least: float = 0.0) -> float:
    """Returns the largest difference of two arrays, relative to the largest number that is due.

    Args:
      got, due: arrays of one shape; NaN differs from every number, and infinities from all others.
      least: the number to divide by if it is larger.
    """
    got = np.asarray(got, np.float32)
    due = np.asarray(due, np.float32)
    differ = got != due
    distance = float(np.abs(got[differ] - due[differ]).max(initial=0.0))
    if distance == 0:
        return 0.0
    largest = max(largest_number(due), least)
    return distance / largest if math.isfinite(distance) and largest else math.inf


def tree_difference(got: Tree, due: Tree) -> float:
    """Returns the largest relative difference of the floats of two trees with equal leaves."""
    pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(due), strict=True))
    pairs = [(a, b) for a, b in pairs if is_float(b)]
    noise = NOISE_SHARE * max(largest_number(b) for _, b in pairs)
    return max(relative_difference(a, b, noise) for a, b in pairs)


def largest_number(x: Array) -> float:
    """Returns the largest absolute value among the finite numbers of an array."""
    return float(np.abs(x).max(initial=0.0, where=np.isfinite(x)))


def is_float(leaf: Array) -> bool:
    """Returns whether a leaf holds floats, and not the integer codes of a quantized matrix."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)
