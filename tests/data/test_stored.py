"""Rows of a table that are mapped from files are the same as those in memory."""

import datetime
import decimal

import numpy as np
import pytest

from flaxformer_lite.data import stored

VALUES = [
    {"a": "x", "b": 1},
    {"a": "y\n\u2028\ud800", "b": None},
    {"b": 2.5, "c": [1, {"d": float("inf")}]},
    {"a": datetime.datetime(2026, 1, 2, 3, 4, 5, 6), "b": decimal.Decimal("1.10")},
    {"a": b"\x00\xff", "b": datetime.timedelta(days=1, microseconds=3)},
    {"b": 1, "a": 10**30},
]


def test_rows_of_a_table_come_back_with_their_types_and_columns(tmp_path):
    assert stored.write_rows(tmp_path, iter(VALUES)) == ("a", "b", "c")
    rows = stored.StoredRows(tmp_path)
    assert list(rows) == VALUES and rows[-1] == VALUES[-1] and rows[1:3] == VALUES[1:3]
    assert [list(row) for row in rows] == [list(row) for row in VALUES]
    with pytest.raises(IndexError):
        rows[len(VALUES)]


def test_long_rows_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "HELD", 350)
    written = [{"a": str(number) * 90} for number in range(9)]
    stored.write_rows(tmp_path, iter(written))
    rows = stored.TakenRows(stored.StoredRows(tmp_path), np.arange(9))
    assert rows.chunk == 3
    assert list(rows) == written
    some = stored.TakenRows(rows, np.array([0, 1, 4, 6, 7]))
    want = [written[number] for number in (0, 1, 4, 6, 7)]
    assert list(some) == want and some[::-2] == want[::-2] and some[2:2] == []


def blocks(folder):
    return np.fromfile(folder / "rows.blocks", np.int64).reshape(-1, 2)[:, 0].tolist()


def test_rows_lie_in_blocks_of_bounded_number_and_size(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "BLOCK", 4)
    monkeypatch.setattr(stored, "BLOCK_SIZE", 100)
    written = [{"a": "x" * (60 if 5 < number < 9 else 3), "n": number} for number in range(14)]
    stored.write_rows(tmp_path, iter(written))
    assert blocks(tmp_path) == [0, 4, 8, 12, 14]
    rows = stored.StoredRows(tmp_path)
    decoded = []
    read = stored.StoredRows._read
    spy = lambda self, number: decoded.append(number) or read(self, number)  # noqa: E731
    monkeypatch.setattr(stored.StoredRows, "_read", spy)
    assert rows.take(np.arange(14)) == written and decoded == [0, 1, 2, 3]
    mixed = np.array([13, 2, 12, 3])
    assert rows.take(mixed) == [written[number] for number in mixed]


def test_bytes_count_towards_the_size_of_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "BLOCK_SIZE", 100)
    images = [{"image": bytes(60), "label": label} for label in range(5)]
    stored.write_rows(tmp_path, images)
    assert blocks(tmp_path) == [0, 2, 4, 5]
    assert list(stored.StoredRows(tmp_path)) == images


def test_small_files_are_not_kept_open(tmp_path):
    for size, is_mapped in ((stored.IN_MEMORY, False), (stored.IN_MEMORY + 1, True)):
        np.arange(size, dtype=np.uint8).tofile(tmp_path / "values")
        values = stored.map_numbers(tmp_path / "values", np.uint8)
        assert len(values) == size and not values.flags.writeable
        assert isinstance(values.base, np.memmap) == is_mapped
