"""Features of a task that are mapped from files are the same as those in memory."""

import collections

import numpy as np
import pytest

from flaxformer_lite.data.stored import Unstorable
from flaxformer_lite.data.stored_features import FeatureWriter, StoredFeatures

Pair = collections.namedtuple("Pair", ["ids", "label"])


def same(first, second):
    if isinstance(first, (tuple, list)):
        equal = len(first) == len(second) and all(map(same, first, second))
        return type(first) is type(second) and equal
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    return type(first) is type(second) and first == second


def test_features_come_back_with_their_types_in_whatever_order_they_need_wider_numbers(tmp_path):
    def feature(number):
        ids = np.arange(number, dtype=np.int32) * 7 - 3
        middle = None if number % 3 else np.float32(number / 3)
        words = [f"w{i}\u00e9" for i in range(number)]
        shaped = np.full((2, 3), number << number, np.int64)
        pair = Pair(ids, np.int32(-number))
        return pair, middle, [ids[:1], words], shaped, number, 0.5, "t\ud800"

    features = [feature(number) for number in range(30)]
    with FeatureWriter(tmp_path) as writer:
        writer.add(features[:3])
        writer.add(features[3:])
    read = StoredFeatures(tmp_path)
    assert len(read) == 30 and all(map(same, features, read))
    read[5][0].ids[0] = 9  # a copy
    assert read[5][0].ids[0] == -3
    assert np.array_equal(read.column(0, 1), [one[0].label for one in features])
    assert read.column(3).shape == (30, 2, 3) and read.column(3).dtype == np.int64


@pytest.mark.parametrize("value", [object(), {1, 2}, {"a": 1}, np.asarray(["a"], object), 1 << 70])
def test_what_files_cannot_hold_is_said(tmp_path, value):
    with pytest.raises(Unstorable), FeatureWriter(tmp_path) as writer:
        writer.add([(value,)])


def test_features_of_many_forms_stay_in_memory(tmp_path):
    forms = [(np.arange(2),) * length for length in range(1, 30)]
    with pytest.raises(Unstorable, match="arrays"), FeatureWriter(tmp_path) as writer:
        writer.add(forms)


@pytest.mark.parametrize(
    "values, size",
    [([0, 255], 1), ([-1, 127], 1), ([-1, 128], 2), ([0, 1 << 16], 4), ([-1, 1 << 31], 8)],
)
def test_numbers_take_no_more_bytes_than_they_need(tmp_path, values, size):
    with FeatureWriter(tmp_path) as writer:
        writer.add([np.array(values)] * 100)
    offsets = 101
    assert (tmp_path / "features").stat().st_size < 200 * size + offsets + 16
    assert same(StoredFeatures(tmp_path)[99], np.array(values))


def test_a_column_is_in_the_order_of_the_features_whatever_their_forms(tmp_path):
    features = [(np.arange(2) if i % 3 else None, np.float32(i)) for i in range(20)]
    with FeatureWriter(tmp_path) as writer:
        writer.add(features[:11])
        writer.add(features[11:])
    read = StoredFeatures(tmp_path)
    assert same(read.column(1), np.arange(20, dtype=np.float32))
    assert same(read[3:9:2], features[3:9:2]) and same(read[-1], features[-1])
    with pytest.raises(Unstorable, match="one shape"):
        read.column(0)
    with pytest.raises(IndexError):
        read[20]


def test_arrays_of_one_length_are_a_column(tmp_path):
    labels = np.arange(60).reshape(20, 3)  # of rows with several labels
    features = []
    for number, row in enumerate(labels):
        features.append((row, row[:0], row[: 1 + number // 11], row[:number]))
    with FeatureWriter(tmp_path) as writer:
        writer.add(features[:11])
        writer.add(features[11:])
    read = StoredFeatures(tmp_path)
    assert same(read.column(0), labels) and same(read.column(1), labels[:, :0])
    for ragged in (2, 3):
        with pytest.raises(Unstorable, match="arrays of several"):
            read.column(ragged)


@pytest.mark.parametrize("name", ["evil:Pair", "sys:float_info", "pathlib:Path", "evil"])
def test_nothing_that_a_cache_names_is_imported(tmp_path, monkeypatch, name):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with FeatureWriter(tmp_path) as writer:
        writer.add([Pair(1, 2)])
    described = (tmp_path / "features.json").read_text()
    assert f"{__name__}:Pair" in described
    (tmp_path / "features.json").write_text(described.replace(f"{__name__}:Pair", name))
    with pytest.raises(Unstorable, match="imported"):
        StoredFeatures(tmp_path)
