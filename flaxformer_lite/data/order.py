"""The order of training rows: each epoch is shuffled anew and, for text, planned anew."""

import functools
from collections.abc import Callable, Sized
from typing import TypeVar

import grain

Planned = TypeVar("Planned", bound=Sized)

SHORT = 4096  # rows; the order of a shorter epoch is kept


def find_row(size: int, seed: int, epoch: int, place: int) -> int:
    """Returns the row at a place of an epoch of `size` rows."""
    if size < SHORT:
        return _short_order(size, seed, epoch)[place]
    return int(_shuffled(size, seed)[epoch * size + place])


@functools.lru_cache(maxsize=4096)
def _shuffled(size: int, seed: int) -> grain.MapDataset:
    """Returns the rows of all epochs, each in its own order."""
    return grain.MapDataset.range(size).seed(seed % 2**32).shuffle().repeat()


@functools.lru_cache(maxsize=64)
def _short_order(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    """Returns the order of the rows of one short epoch.

    grain permutes 2**16 numbers and skips those that are no rows, so that each of 10 rows takes 4
    ms and each of 1,000 takes 0.04 ms. Runs on the same few rows share the order.
    """
    rows = _shuffled(size, seed)
    return tuple(int(rows[epoch * size + position]) for position in range(size))


def endless_finder(
    open_plan: Callable[[int], Planned], num_plans: int, seed: int
) -> Callable[[int], tuple[Planned, int]]:
    """Returns the function that finds row p of an endless stream.

    The function returns the records and the row in them.

    Epoch e reads each row of plan e % num_plans once, in its own order. Plans differ slightly in
    their number of rows; the place of p follows from these numbers, so there is no state, and a run
    resumes anywhere.

    Args:
      open_plan: returns the records of a plan; first called for one when its epoch begins.
      num_plans: number of plans.
      seed: seed of the shuffles.
    """

    def find(position: int) -> tuple[Planned, int]:
        epoch = 0
        rest = position  # rows from the beginning of the epoch
        size = len(open_plan(0))
        while rest >= size:
            epoch = epoch + 1
            rest = rest - size
            if epoch == num_plans:
                # All plans together have position - rest rows, so that whole cycles are skipped at
                # once.
                cycles, rest = divmod(rest, position - rest)
                epoch += cycles * num_plans
            size = len(open_plan(epoch % num_plans))
        return open_plan(epoch % num_plans), find_row(size, seed, epoch, rest)

    return find
