"""Rows and features that are mapped from files are the same as those in memory."""

import collections
import datetime
import decimal

import numpy as np
import pytest

from flaxformer_lite.data import stored

Pair = collections.namedtuple("Pair", ["ids", "label"])
VALUES = [
    {"a": "x", "b": 1},
    {"a": "y\n\u2028\ud800", "b": None},
    {"b": 2.5, "c": [1, {"d": float("inf")}]},
    {"a": datetime.datetime(2026, 1, 2, 3, 4, 5, 6), "b": decimal.Decimal("1.10")},
    {"a": b"\x00\xff", "b": datetime.timedelta(days=1, microseconds=3)},
    {"b": 1, "a": 10**30},
]


def same(first, second):
    if isinstance(first, (tuple, list)):
        equal = len(first) == len(second) and all(map(same, first, second))
        return type(first) is type(second) and equal
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    return type(first) is type(second) and first == second


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


def test_features_come_back_with_their_types_in_whatever_order_they_need_wider_numbers(tmp_path):
    def feature(number):
        ids = np.arange(number, dtype=np.int32) * 7 - 3
        middle = None if number % 3 else np.float32(number / 3)
        words = [f"w{i}\u00e9" for i in range(number)]
        shaped = np.full((2, 3), number << number, np.int64)
        return (
            Pair(ids, np.int32(-number)),
            middle,
            [ids[:1], words],
            shaped,
            number,
            0.5,
            "t\ud800",
        )

    features = [feature(number) for number in range(30)]
    with stored.FeatureWriter(tmp_path) as writer:
        writer.add(features[:3])
        writer.add(features[3:])
    read = stored.StoredFeatures(tmp_path)
    assert len(read) == 30 and all(map(same, features, read))
    read[5][0].ids[0] = 9  # a copy
    assert read[5][0].ids[0] == -3
    assert np.array_equal(read.column(0, 1), [one[0].label for one in features])
    assert read.column(3).shape == (30, 2, 3) and read.column(3).dtype == np.int64
    assert stored.mapped(tmp_path / "0-1", np.int8).min() == -27  # no wider than needed


@pytest.mark.parametrize("value", [object(), {1, 2}, np.asarray(["a"], object), 1 << 70])
def test_what_files_cannot_hold_is_said(tmp_path, value):
    with pytest.raises(stored.Unstorable), stored.FeatureWriter(tmp_path) as writer:
        writer.add([(value,)])


def test_features_of_many_forms_stay_in_memory_rather_than_open_a_file_for_each(tmp_path):
    forms = [(np.arange(2),) * length for length in range(1, 30)]
    with pytest.raises(stored.Unstorable, match="arrays"), stored.FeatureWriter(tmp_path) as writer:
        writer.add(forms)


def test_small_files_are_not_kept_open(tmp_path):
    for size, is_mapped in ((stored.IN_MEMORY, False), (stored.IN_MEMORY + 1, True)):
        np.arange(size, dtype=np.uint8).tofile(tmp_path / "values")
        values = stored.mapped(tmp_path / "values", np.uint8)
        assert len(values) == size and not values.flags.writeable
        assert isinstance(values.base, np.memmap) == is_mapped


@pytest.mark.parametrize("name", ["evil:Pair", "sys:float_info", "pathlib:Path", "evil"])
def test_nothing_that_a_cache_names_is_imported(tmp_path, monkeypatch, name):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with stored.FeatureWriter(tmp_path) as writer:
        writer.add([Pair(1, 2)])
    described = (tmp_path / "features.json").read_text()
    assert f"{__name__}:Pair" in described
    (tmp_path / "features.json").write_text(described.replace(f"{__name__}:Pair", name))
    with pytest.raises(stored.Unstorable, match="imported"):
        stored.StoredFeatures(tmp_path)
