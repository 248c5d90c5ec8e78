"""Plans rows: which pieces of which documents share an example of fixed length.

The tokens of all documents are concatenated in one array, each document ending with the end-of-text
token; document d starts at `offsets[d]`, and the last one ends at `offsets[-1]`. A plan holds only
positions, never tokens, and depends only on the offsets and a shift: it is made once and stored
beside the tokens. A shift, in [0, 1), moves the places where documents are cut, so that the epochs
of a training text need not repeat the same rows; at 0 they are where they always were.
"""

from typing import NamedTuple

import numpy as np

WHOLE_DOCUMENTS = np.zeros(0, np.int64)  # `start` and `length` of a plan that cuts none
NUM_PLANS = 16  # of a training text; epoch 16 takes the rows of epoch 0 again, in another order
MANY_PIECES = 8  # pieces of a document that can afford one more, for its cuts to move


class RowPlan(NamedTuple):
    """A plan where row r holds the pieces first[r] .. first[r + 1] - 1.

    A piece is a run of tokens of one document; or all of it, where the plan has no `start`.
    """

    start: np.ndarray  # [pieces] int64, in the token array; or [0]
    length: np.ndarray  # [pieces] int32, tokens; or [0]
    document: np.ndarray  # [pieces] int64
    first: np.ndarray  # [rows + 1] int64

    @property
    def cuts_documents(self) -> bool:
        """Whether pieces may be parts of documents."""
        return len(self.start) > 0


def shift_of(epoch: int) -> float:
    """Returns the shift of an epoch.

    Shifts are multiples of the golden ratio, so in the first few epochs they are far apart.
    """
    return epoch % NUM_PLANS * (5**0.5 - 1) / 2 % 1


def cut_windows(offsets: np.ndarray, width: int, stride: int, shift: float = 0.0) -> RowPlan:
    """Cuts the token array into windows that cover every token.

    Only the last row, and with a shift the first, are padded.

    With stride = width - 1 neighbors share one token, so that each token is once the label of the
    one before it.
    """
    total = int(offsets[-1])
    ahead = -int(shift * stride) % stride  # tokens that the first row would begin before the text
    starts = (
        np.arange(max(1, -(-(total + ahead - (width - stride)) // stride)), dtype=np.int64) * stride
        - ahead
    )
    ends = np.minimum(starts + width, total)
    starts = np.maximum(starts, 0)
    low = np.searchsorted(offsets, starts, side="right") - 1
    high = np.searchsorted(offsets, ends - 1, side="right")
    first = np.concatenate([[0], np.cumsum(high - low)])
    row = np.repeat(np.arange(len(starts)), high - low)
    document = low[row] + np.arange(first[-1]) - first[row]
    start = np.maximum(offsets[document], starts[row])
    length = np.minimum(offsets[document + 1], ends[row]) - start
    return RowPlan(start, length.astype(np.int32), document, first)


def cut_documents(offsets: np.ndarray, capacity: int, minimum: int, shift: float = 0.0) -> RowPlan:
    """Cuts each document into the fewest equal pieces of at most `capacity` tokens.

    Pieces leave out the document's end-of-text token.

    With a shift only the pieces behind the first are equal. The first then has a length between the
    shortest and the longest that add no piece; a document of MANY_PIECES pieces or more takes
    another one if this leaves little choice.

    Documents shorter than `minimum` are left out. Each row has one piece; `share_rows` joins rows.
    """
    lengths = np.diff(offsets) - 1
    parts = np.where(lengths >= minimum, -(-lengths // capacity), 0)
    led = int(shift > 0)
    first = np.zeros_like(lengths)
    if led:
        parts += (parts >= MANY_PIECES) & (parts * capacity - lengths < capacity // 4)
        shortest = np.maximum(minimum, lengths - (parts - 1) * capacity)
        longest = np.minimum(capacity, lengths - (parts - 1) * minimum)
        first = np.where(
            parts > 1, shortest + (shift * (longest - shortest + 1)).astype(np.int64), lengths
        )
    document = np.repeat(np.arange(len(lengths)), parts)
    part = np.arange(len(document)) - (np.cumsum(parts) - parts)[document]

    def begin(number: np.ndarray) -> np.ndarray:
        rest = (number - led) * (lengths - first)[document] // np.maximum(parts - led, 1)[document]
        return np.where(number < led, 0, first[document] + rest)

    low = begin(part)
    high = begin(part + 1)
    return RowPlan(
        offsets[document] + low,
        (high - low).astype(np.int32),
        document,
        np.arange(len(document) + 1),
    )


def take_beginnings(offsets: np.ndarray, limit: int) -> RowPlan:
    """Plans one row per document: its first `limit` tokens, without its end-of-text token."""
    length = np.minimum(np.diff(offsets) - 1, limit).astype(np.int32)
    count = len(length)
    return RowPlan(offsets[:-1], length, np.arange(count), np.arange(count + 1))


def share_rows(plan: RowPlan, costs: np.ndarray, budgets: tuple[int, ...]) -> RowPlan:
    """Joins neighboring rows of a plan while their costs fit (next-fit).

    Objectives cut pieces such that each fits by itself.

    Args:
      plan: rows to be joined.
      costs: [rows, C] int64, the cost of each row in each of the C budgets.
      budgets: C sizes of a joined row, for example encoder and decoder length.
    """
    assert (costs <= np.asarray(budgets)).all(), "a piece larger than a row"
    spent = np.concatenate([np.zeros((1, costs.shape[1]), np.int64), np.cumsum(costs, axis=0)])
    columns = list(zip(map(np.ascontiguousarray, spent.T), budgets, strict=True))
    firsts = [0]
    row = 0
    rows = len(costs)
    while row < rows:
        ends = []
        for column, budget in columns:
            ends.append(int(np.searchsorted(column, column[row] + budget, side="right")) - 1)
        row = min(ends)
        firsts.append(row)
    return plan._replace(first=plan.first[np.asarray(firsts)])
