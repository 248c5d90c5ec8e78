"""Packing plans: which pieces of which documents share an example of fixed length.

The tokens of all documents are concatenated in one array, each document ending with the end-of-text token; document d
starts at `offsets[d]`, and the last one ends at `offsets[-1]`. A plan holds only positions, never tokens, and depends
only on the offsets: it is made once and stored beside the tokens.
"""

from typing import NamedTuple

import numpy as np


class Packing(NamedTuple):
    """A plan where row r holds the pieces first[r] .. first[r + 1] - 1; a piece is a run of tokens of one document."""

    start: np.ndarray  # [pieces] int64, in the token array
    length: np.ndarray  # [pieces] int32, tokens
    document: np.ndarray  # [pieces] int64
    first: np.ndarray  # [rows + 1] int64


def windows(offsets: np.ndarray, width: int, stride: int) -> Packing:
    """Cuts the token array into windows that cover every token, with padding only in the last row.

    With stride = width - 1 neighbors share one token, so that each token is once the label of the one before it.

    """
    total = int(offsets[-1])
    starts = np.arange(max(1, -(-(total - (width - stride)) // stride)), dtype=np.int64) * stride
    ends = np.minimum(starts + width, total)
    low = np.searchsorted(offsets, starts, side="right") - 1
    high = np.searchsorted(offsets, ends - 1, side="right")
    first = np.concatenate([[0], np.cumsum(high - low)])
    row = np.repeat(np.arange(len(starts)), high - low)
    document = low[row] + np.arange(first[-1]) - first[row]
    start = np.maximum(offsets[document], starts[row])
    length = np.minimum(offsets[document + 1], ends[row]) - start
    return Packing(start, length.astype(np.int32), document, first)


def cut(offsets: np.ndarray, capacity: int, minimum: int) -> Packing:
    """Cuts each document, without its end-of-text token, into the fewest equal pieces of at most `capacity` tokens.

    Documents shorter than `minimum` are left out. Each row has one piece; `share_rows` joins rows.
    """
    lengths = np.diff(offsets) - 1
    parts = np.where(lengths >= minimum, -(-lengths // capacity), 0)
    document = np.repeat(np.arange(len(lengths)), parts)
    part = np.arange(len(document)) - (np.cumsum(parts) - parts)[document]
    low = part * lengths[document] // parts[document]
    high = (part + 1) * lengths[document] // parts[document]
    return Packing(offsets[document] + low, (high - low).astype(np.int32), document, np.arange(len(document) + 1))


def beginnings(offsets: np.ndarray, limit: int) -> Packing:
    """Gives each document one row: its first `limit` tokens, without its end-of-text token."""
    length = np.minimum(np.diff(offsets) - 1, limit).astype(np.int32)
    count = len(length)
    return Packing(offsets[:-1], length, np.arange(count), np.arange(count + 1))


def share_rows(plan: Packing, costs: np.ndarray, budgets: tuple[int, ...]) -> Packing:
    """Joins neighboring rows of a plan as long as their costs fit (next-fit); objectives cut pieces so that each fits.

    Args:
      plan: rows to be joined.
      costs: [rows, C] int64, the cost of each row in each of the C budgets.
      budgets: C sizes of a joined row, for example encoder and decoder length.
    """
    assert (costs <= np.asarray(budgets)).all(), "a piece larger than a row"
    spent = np.concatenate([np.zeros((1, costs.shape[1]), np.int64), np.cumsum(costs, axis=0)])
    columns = [(np.ascontiguousarray(column), budget) for column, budget in zip(spent.T, budgets, strict=True)]
    firsts, row, rows = [0], 0, len(costs)
    while row < rows:
        row = min(int(np.searchsorted(column, column[row] + budget, side="right")) - 1 for column, budget in columns)
        firsts.append(row)
    return plan._replace(first=plan.first[np.asarray(firsts)])
