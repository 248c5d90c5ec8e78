"""Named arrays of records: in memory, mapped, and built in parts by several processes."""

import json
import multiprocessing
import shutil
import types
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import store, store_writer
from flaxformer_lite.data.store_writer import Part, build_store, open_store
from flaxformer_lite.objectives.rows import StoredColumn
from flaxformer_lite.storage import content_cache

COLUMNS = {
    "ids": StoredColumn("token"),
    "answers": StoredColumn("bool", like="ids"),
    "label": StoredColumn("int32", ()),
    "box": StoredColumn("float32", (2, 2)),
    "texts": StoredColumn("key", (2,)),
}
SIZES = {"train": [3, 0, 5, 2, 2, 4], "eval": [1, 4, 2]}


def record(split, number):
    length = SIZES[split][number]
    at = 100 * (split == "eval") + 10 * number
    return {
        "ids": np.arange(at, at + length, dtype=np.int32),
        "answers": np.arange(length) % 2 == 0,
        "label": np.int32(-number),
        "box": np.full((2, 2), number / 3, np.float32),
        "texts": np.asarray([2**63 + number % 2, 7], np.uint64),
    }


def parts(cuts=((0, 9),)):
    """The records of both splits in parts; `cuts` are the first and last number of each."""

    def write(first, last, writer):
        for split, sizes in SIZES.items():
            numbers = range(first, min(last, len(sizes)))
            writer.append(split, [record(split, number) for number in numbers])
        writer.count("parts")

    return [
        Part(str(number), lambda writer, cut=cut: write(*cut, writer))
        for number, cut in enumerate(cuts)
    ]


def check(made, counted=1):
    assert made.splits == {"train": range(6), "eval": range(6, 9)} and len(made) == 9
    assert made.counts == {"parts": counted}
    numbers = set()
    for split, records in made.splits.items():
        for number, at in enumerate(records):
            due = record(split, number)
            found = made[at]
            hashed = due.pop("texts")
            numbers |= set(zip(hashed.tolist(), found.pop("texts").tolist(), strict=True))
            for name, entry in due.items():
                assert np.array_equal(found[name], entry), (split, number, name)
            assert found["ids"].dtype == np.int32 and found["answers"].dtype == bool
            found["ids"] += 1  # a copy
    assert sorted(number for _, number in numbers) == [0, 1, 2]
    assert made.lengths("ids").tolist() == [*SIZES["train"], *SIZES["eval"]]
    assert made.offsets("answers").tolist() == made.offsets("ids").tolist()
    assert made.values("box").shape == (9, 2, 2)


IN_PARTS = ((0, 2), (2, 2), (2, 5), (5, 9))


def test_in_memory_and_mapped_are_the_same(tmp_path, monkeypatch):
    check(build_store(COLUMNS, parts()))
    check(build_store(COLUMNS, parts(IN_PARTS)), counted=4)
    check(open_store(str(tmp_path), "small", COLUMNS, parts()))
    monkeypatch.setattr(store, "MAX_READ_BYTES", 0)
    monkeypatch.setattr(store_writer, "MAX_BUFFERED_BYTES", 8)
    monkeypatch.setattr(store_writer, "COPIED_BYTES", 64)
    check(open_store(str(tmp_path), "one", COLUMNS, parts()))
    check(open_store(str(tmp_path), "parts", COLUMNS, parts(IN_PARTS)), counted=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "parts", "small"]
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
        "columns",
        "complete.json",
        "store.json",
    ]
    check(open_store(str(tmp_path), "parts", COLUMNS, []), counted=4)


def test_arrays_lie_where_the_description_says_at_multiples_of_64_bytes(tmp_path):
    open_store(str(tmp_path), "made", COLUMNS, parts())
    described = json.loads((tmp_path / "made" / "store.json").read_text())
    content = (tmp_path / "made" / "columns").read_bytes()
    dtype, start, count = described["columns"]["ids"]["values"]
    assert (dtype, start % 64) == ("<u2", 0)
    assert np.frombuffer(content, dtype, count, start)[:3].tolist() == [0, 1, 2]
    assert described["columns"]["answers"]["offsets"] == "ids"
    assert all(column["values"][1] % 64 == 0 for column in described["columns"].values())


@pytest.mark.parametrize("vocab_size, dtype", [(65_536, np.uint16), (65_537, np.uint32)])
def test_tokens_take_as_few_bytes_as_the_vocabulary_needs(vocab_size, dtype):
    made = build_store(COLUMNS, parts(), vocab_size)
    assert made.values("ids").dtype == dtype and made[0]["ids"].dtype == np.int32


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"label": np.zeros(2)}, "'label': an entry does not have the shape"),
        ({"label": np.float32(0.5)}, "'label': holds float"),
        ({"ids": np.zeros((2, 2))}, "'ids': an entry does not have one axis"),
        ({"ids": np.asarray([-1, 2, 3])}, "'ids': holds int64"),
        ({"answers": np.zeros(9, bool)}, "'answers': has other lengths than 'ids'"),
        ({"other": np.zeros(9)}, "'other': is not declared in `stored`"),
    ],
)
def test_a_record_that_is_not_as_declared_is_refused(changes, message):
    part = Part("0", lambda writer: writer.append("train", [record("train", 0) | changes]))
    with pytest.raises(ConfigError, match=message):
        build_store(COLUMNS, [part])
    lacking = {name: entry for name, entry in record("train", 0).items() if name != "label"}
    part = Part("0", lambda writer: writer.append("train", [lacking]))
    with pytest.raises(ConfigError, match="'label': is declared in `stored`, and a record lacks"):
        build_store(COLUMNS, [part])


def test_an_entry_larger_than_memory_is_appended_in_pieces():
    columns = {"ids": StoredColumn("token"), "number": StoredColumn("int32", ())}

    def write(writer):
        for number in range(3):
            for ids in np.split(np.arange(9), 3)[:number]:
                writer.begin_entry("train", "ids", ids)
            writer.append("train", [{"ids": np.arange(number), "number": number}] * 2)

    made = build_store(columns, [Part("0", write)])
    assert made.lengths("ids").tolist() == [0, 0, 4, 1, 8, 2]
    assert made[4]["ids"].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert made.values("number").tolist() == [0, 0, 1, 1, 2, 2]


def test_what_a_killed_process_left_is_used_and_removed(tmp_path):
    made = parts(IN_PARTS)
    failing = [*made[:2], Part("2", lambda writer: 1 / 0), made[3]]
    with pytest.raises(ZeroDivisionError):
        open_store(str(tmp_path), "made", COLUMNS, failing)
    left = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert left == {"made.part-0", "made.part-1"}
    for number in (0, 1):  # not written again
        made[number] = Part(str(number), lambda writer: 1 / 0)
    check(open_store(str(tmp_path), "made", COLUMNS, made), counted=4)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_part_of_another_process_is_left_to_it(tmp_path):
    names = []

    def write(folder):
        names.append("outer")
        assert not content_cache.claim(tmp_path, "one", lambda folder: names.append("inner"))
        assert content_cache.claim(tmp_path, "two", lambda folder: names.append("two"))

    assert content_cache.claim(tmp_path, "one", write)
    assert content_cache.claim(tmp_path, "one", write)
    assert names == ["outer", "two"]


def build(folder, log, ready):
    """Builds a store, and writes which parts it wrote."""

    def told(part):
        def write(writer):
            with open(log, "a") as file:
                file.write(f"{part.name}\n")
            ready.wait(60)  # until another process has a part, too
            part.write(writer)

        return Part(part.name, write)

    check(open_store(folder, "made", COLUMNS, list(map(told, parts(IN_PARTS)))), counted=4)


def test_two_processes_divide_the_parts(tmp_path):
    processes = multiprocessing.get_context("spawn")
    ready = processes.Barrier(2)
    log = tmp_path / "written"
    started = []
    for _ in range(2):
        started.append(
            processes.Process(target=build, args=(str(tmp_path / "cache"), str(log), ready))
        )
        started[-1].start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    assert sorted(log.read_text().split()) == ["0", "1", "2", "3"]


def test_a_disk_without_room_for_the_whole_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=0))
    with pytest.raises(content_cache.NotWritable, match="needs 0 MB to join what has been encoded"):
        open_store(str(tmp_path), "made", COLUMNS, parts(IN_PARTS))


def test_a_damaged_store_is_written_again(tmp_path, capsys):
    check(open_store(str(tmp_path), "made", COLUMNS, parts()))
    path = Path(tmp_path, "made", "columns")
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    check(open_store(str(tmp_path), "made", COLUMNS, parts()))
    assert "damaged, written again" in capsys.readouterr().err


def test_small_files_are_not_kept_open(tmp_path):
    columns = {"x": StoredColumn("uint8", ())}
    for size, is_mapped in ((store.MAX_READ_BYTES, False), (store.MAX_READ_BYTES + 1, True)):
        numbers = np.arange(size).astype(np.uint8)
        write = lambda writer, x=numbers: writer.append_joined("train", len(x), {"x": x}, {})  # noqa: E731
        values = open_store(str(tmp_path), f"of-{size}", columns, [Part("0", write)]).values("x")
        assert np.array_equal(values, numbers) and not values.flags.writeable
        assert isinstance(values.base.base, np.memmap) == is_mapped


def test_a_store_may_have_no_records(tmp_path):
    nothing = [Part("0", lambda writer: writer.append("train", []))]
    for made in (build_store(COLUMNS, nothing), open_store(str(tmp_path), "a", COLUMNS, nothing)):
        assert len(made) == 0 and made.values("box").shape == (0, 2, 2)
        assert made.values("texts").dtype == np.int32 and made.offsets("ids").tolist() == [0]
