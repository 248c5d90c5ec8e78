"""Decides whether work is balanced between devices that hold rows of one sequence."""

from flaxformer_lite.nn.functions import masks


def is_imbalanced(mask: masks.Mask | None, T: int, S: int, count: int) -> bool:
    """Returns whether devices have unequal work, and their rows can be halved to balance it.

    Work is unequal if the rows of some device see at least twice as many columns as those of
    another.
    """
    if mask is None or T % (2 * count):
        return False
    size = T // count
    reaches = [mask.column_bounds(start, start + size, S) for start in range(0, T, size)]
    seen = [last - first for first, last in reaches]
    return bool(2 * min(seen) <= max(seen))
