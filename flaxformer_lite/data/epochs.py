"""The order of training examples: each epoch is shuffled anew and, for text, packed anew."""

import functools
from collections.abc import Callable, Sized
from typing import TypeVar

import grain

Packed = TypeVar("Packed", bound=Sized)


def endless(
    packing: Callable[[int], Packed], packings: int, seed: int
) -> Callable[[int], tuple[Packed, int]]:
    """Returns the function that finds example p of an endless stream.

    The function returns the records and the row in them.

    Epoch e reads each row of packing e % packings once, in its own order. Packings differ slightly
    in their number of rows; the position of p follows from these numbers, so there is no state, and
    a run resumes anywhere.

    Args:
      packing: returns the records of a packing; first called for one when its epoch begins.
      packings: number of packings.
      seed: seed of the shuffles.
    """

    @functools.cache
    def shuffled(number: int) -> grain.MapDataset:
        return grain.MapDataset.range(len(packing(number))).seed(seed % 2**32).shuffle().repeat()

    def find(position: int) -> tuple[Packed, int]:
        epoch = 0
        rest = position  # rows from the beginning of the epoch
        size = len(packing(0))
        while rest >= size:
            epoch = epoch + 1
            rest = rest - size
            if epoch == packings:
                cycles, rest = divmod(rest, position - rest)
                epoch += cycles * packings
            size = len(packing(epoch % packings))
        number = epoch % packings
        return packing(number), int(shuffled(number)[epoch * size + rest])

    return find
