"""Token ids of other programs become the same corpus as the text that they were made from."""

import io
import struct
from itertools import pairwise

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import token_files
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.data.documents import open_corpus
from flaxformer_lite.text.tokenizer import Bytes

TEXT = ("text",)
KNOWN = Bytes()


@pytest.fixture
def encoded(documents):
    return [KNOWN.encode(text) for text in documents]


def joined(encoded, dtype=np.uint16):
    return np.concatenate([[*ids, KNOWN.eos_id] for ids in encoded]).astype(dtype)


def plain(folder, encoded):
    joined(encoded).tofile(folder / "a.bin")
    return folder / "a.bin"


def numpy(folder, encoded):
    np.save(folder / "a.npy", joined(encoded, np.int64))
    return folder / "a.npy"


def megatron(folder, encoded, code=4, dtype=np.int32):
    """As Megatron's indexed data set: each document is two sequences, and none ends with the
    end-of-text id."""
    sequences = [half for ids in encoded for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :])]
    sizes = np.array([len(ids) for ids in sequences], np.int32)
    np.concatenate(sequences).astype(dtype).tofile(folder / "a.bin")
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sizes), len(encoded) + 1)
    starts = (np.cumsum(sizes, dtype=np.int64) - sizes) * np.dtype(dtype).itemsize
    documents = np.arange(0, len(sizes) + 1, 2, dtype=np.int64)
    arrays = (sizes, starts, documents)
    (folder / "a.idx").write_bytes(index + b"".join(array.tobytes() for array in arrays))
    return folder / "a.bin"


def ids_of(found):
    """The documents of both splits, in order, each without its end-of-text id."""
    parts = []
    for split in ("train", "eval"):
        ids = np.asarray(found.tokens[split].ids)
        offsets = np.asarray(found.tokens[split].offsets)
        assert offsets[0] == 0 and offsets[-1] == len(ids)
        assert (ids[offsets[1:] - 1] == KNOWN.eos_id).all()
        parts += [ids[a : b - 1].tolist() for a, b in pairwise(offsets)]
    return parts


@pytest.mark.parametrize(
    "write", [plain, numpy, megatron, lambda *a: megatron(*a, code=8, dtype=np.uint16)]
)
def test_every_form_holds_the_same_documents(experiment, tmp_path, encoded, write, monkeypatch):
    monkeypatch.setattr(token_files, "CHUNK", 1000)
    found = open_corpus(experiment(path=str(write(tmp_path, encoded))).data, TEXT)
    assert ids_of(found) == encoded
    train, held = (len(found.tokens[split].ids) for split in ("train", "eval"))
    assert 0.05 < held / (train + held) < 0.2
    assert found.tokens["train"].ids.dtype == np.uint16


def test_several_files_follow_each_other_and_train(experiment, tmp_path, encoded):
    joined(encoded[:50]).tofile(tmp_path / "0.bin")
    joined(encoded[50:]).tofile(tmp_path / "1.bin")
    cfg = experiment(path=f"{tmp_path}/*.bin")
    assert ids_of(open_corpus(cfg.data, TEXT)) == encoded
    batch = next(open_dataset(cfg).batches(batch_size=4))
    assert batch["inputs"]["input_ids"].shape == (4, 32)


def test_one_long_document_is_cut_where_due(experiment, tmp_path):
    ids = KNOWN.encode("abcdefghij" * 100)
    np.array(ids, np.uint16).tofile(tmp_path / "a.bin")
    found = open_corpus(experiment(path=str(tmp_path / "a.bin")).data, TEXT)
    assert ids_of(found) == [ids[:900], ids[900:]]


def test_all_of_it_can_be_held_out(experiment, tmp_path, encoded):
    data = experiment(path=str(plain(tmp_path, encoded))).data
    found = open_corpus(data, TEXT, all_held_out=True)
    assert len(found.tokens["train"].ids) == 0 and ids_of(found) == encoded


def test_the_index_belongs_to_the_fingerprint(experiment, tmp_path, encoded):
    cfg = experiment(path=str(megatron(tmp_path, encoded))).data
    before = open_corpus(cfg, TEXT).fingerprint
    (tmp_path / "a.idx").unlink()
    assert open_corpus(cfg, TEXT).fingerprint != before


DAMAGED = r"a\.bin, a\.idx: not Megatron's index, or damaged"
INDEX = {
    "cut": (lambda data: data[:-9], DAMAGED),
    "of another kind": (lambda data: b"other" + data[5:], "the index does not fit the file"),
    "of another type": (lambda data: data[:17] + b"\x63" + data[18:], DAMAGED),
    "of too many": (lambda data: data[:18] + b"\xff" * 8 + data[26:], DAMAGED),
    "empty": (lambda data: b"", DAMAGED),
}


@pytest.mark.parametrize("name", INDEX)
def test_a_damaged_index(experiment, tmp_path, encoded, name):
    change, message = INDEX[name]
    path = megatron(tmp_path, encoded)
    index = path.with_suffix(".idx")
    index.write_bytes(change(index.read_bytes()))
    with pytest.raises(ConfigError, match=rf"data\.path='.*{message}"):
        open_corpus(experiment(path=str(path)).data, TEXT)


NPY = r"a\.npy cannot be read as token ids"


def saved(values):
    file = io.BytesIO()
    np.save(file, np.array(values), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.bin", b"\1\0\xe7\3", r"token 999, where the tokenizer has 362; set"),
        ("a.bin", b"\3\0", r"too few tokens to hold out 10% of them"),
        ("a.bin", b"odd", r"a\.bin cannot be read as token ids"),
        ("a.npy", saved([3, -1]), r"holds the token -1"),
        ("a.npy", saved([0.5]), r"a\.npy: must hold whole numbers, but has 1 of float64"),
        ("a.npy", saved([{}]), NPY),
        ("a.npy", b"no array", NPY),
    ],
)
def test_bad_files(experiment, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"data\.path='.*{message}"):
        open_corpus(experiment(path=str(tmp_path / name)).data, TEXT)


def test_what_the_config_must_say(experiment, tmp_path, encoded):
    path = plain(tmp_path, encoded)
    with pytest.raises(ConfigError, match=r"holds token ids; set data\.tokenizer\.path.*tokenizer"):
        open_corpus(experiment(path=str(path), tokenizer="byte_bpe").data, TEXT)
    with pytest.raises(ConfigError, match=r"token ids.*source and target"):
        open_corpus(experiment(path=str(path)).data, ("source", "target"))
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ConfigError, match=r"a\.txt.*others.*give one or the other"):
        open_corpus(experiment(path=f"{path},{tmp_path}/a.txt").data, TEXT)
