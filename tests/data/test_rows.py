"""Rows of a table as they are kept, and by role. Their checks: test_scan.py."""

import datetime
import decimal

import numpy as np
import pytest

from flaxformer_lite.data import rows
from flaxformer_lite.data.rows import keep_table

DATE = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
VALUES = [
    {"a": "x", "b": 1},
    {"a": "y\n\u2028\ud800", "b": None},
    {"b": 2.5, "c": [1, {"d": float("inf")}]},
    {"a": DATE, "b": decimal.Decimal("1.10")},
    {"a": b"\x00", "b": datetime.timedelta(days=1)},
    {"b": 1, "a": 10**30},
]
KEPT = [
    *VALUES[:3],
    {"a": "2026-01-02 03:04:05.000006", "b": "1.10"},
    {"a": "b'\\x00'", "b": "1 day, 0:00:00"},
    VALUES[5],
]


def test_rows_come_back_with_their_columns_and_what_json_lacks_is_text():
    kept = keep_table(VALUES).rows
    assert list(kept) == KEPT and kept[-1] == KEPT[-1] and kept[1:3] == KEPT[1:3]
    assert [list(row) for row in kept] == [list(row) for row in VALUES]
    assert list(kept.store.counts) == ["a", "b", "c"]
    with pytest.raises(IndexError):
        kept[len(VALUES)]
    some = kept.take(np.array([5, 0, 1, 3])).take(np.array([0, 2, 3]))
    assert list(some) == [KEPT[5], KEPT[1], KEPT[3]] and some[::-2] == [KEPT[3], KEPT[5]]
    assert some[2:2] == [] and list(keep_table([]).rows) == []
    by_role = some.by_role({"text": "a", "inner": "c.d", "none": None})
    assert by_role[0] == {"text": 10**30, "inner": None, "none": None}


@pytest.mark.parametrize("max_rows, max_bytes, due", [(4, 10**6, [0, 4, 8]), (4, 300, [0, 3, 6])])
def test_rows_are_read_and_written_a_few_at_a_time(monkeypatch, max_rows, max_bytes, due):
    monkeypatch.setattr(rows, "MAX_HELD_BYTES", 250)
    written = [{"a": str(number) * 90} for number in range(9)]
    kept = keep_table(written).rows
    batches = list(kept.batches(max_rows=max_rows, max_bytes=max_bytes))
    assert [first for first, _ in batches] == due
    assert [row for _, batch in batches for row in batch] == written
    assert [first for first, _ in kept.batches(range(4, 6), max_bytes=1)] == [4, 5]
