"""The order in which training examples are read: each epoch is shuffled anew and, where it is a
text, packed anew."""

import functools
from collections.abc import Callable
from typing import Any

import grain


def endless(
    packing: Callable[[int], Any], packings: int, seed: int
) -> Callable[[int], tuple[Any, int]]:
    """Returns the function that finds example p of an endless stream: the records, and the row in
    them.

    Epoch e reads each row of packing e % packings once, in an order of its own. Packings differ a
    little in their number of rows; where p lies follows from these numbers, so that there is no
    state, and a run resumes anywhere.

    Args:
      packing: returns the records of a packing; is first asked for one when its epoch begins.
      packings: how many there are.
      seed: of the shuffles.
    """

    @functools.cache
    def shuffled(number: int) -> grain.MapDataset:
        return grain.MapDataset.range(len(packing(number))).seed(seed % 2**32).shuffle().repeat()

    def find(position: int) -> tuple[Any, int]:
        epoch = 0
        place = position
        while place >= (size := len(packing(epoch % packings))):
            epoch = epoch + 1
            place = place - size
            if epoch == packings:
                cycles, place = divmod(place, position - place)
                epoch += cycles * packings
        number = epoch % packings
        return packing(number), int(shuffled(number)[epoch * size + place])

    return find
