"""Files of others are read within bounds: their kind, size, depth, numbers, keys and types."""

import json
import os

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files import read

TEXTS = {
    "nested": (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 100 deep"),
    "nested without end": (b"[" * 100_000, "nested too deeply"),
    "a number of forty digits": (b'{"a": ' + b"1" * 40 + b"}", "a whole number of 40 digits"),
    "a number of ten thousand digits": (
        b'{"a": -' + b"1" * 10_000 + b"}",
        "a whole number of 10001 digits",
    ),
    "a key twice": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "names c twice, with different values"),
    "a key that cannot be printed, twice": (
        b'{"\\u001b[31m": 1, "\\u001b[31m": 2}',
        r"names '\\x1b\[31m' twice",
    ),
    "a list": (b"[1]", "must be a JSON object"),
    "a number": (b"3", "must be a JSON object"),
    "another encoding": ('{"a": "é"}'.encode("latin-1"), "is not JSON"),
}


@pytest.mark.parametrize("what", TEXTS)
def test_what_is_out_of_bounds_is_refused(tmp_path, what):
    text, message = TEXTS[what]
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(ConfigError, match=message):
        read.read_object(tmp_path / "x.json")


def test_what_published_files_hold_is_read(tmp_path):
    """10**30 is the usual spelling of no limit; a key may stand there twice with one value."""
    (tmp_path / "x.json").write_text(
        '{"model_max_length": 1000000000000000019884624838656, "a": NaN, "a": 1.5}'
    )
    with pytest.raises(ConfigError, match="names a twice"):
        read.read_object(tmp_path / "x.json")
    (tmp_path / "x.json").write_text(
        '{"model_max_length": 1000000000000000019884624838656, "b": 2, "b": 2}'
    )
    assert read.read_object(tmp_path / "x.json") == {"model_max_length": int(1e30), "b": 2}


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_only_regular_files_are_read(tmp_path, kind):
    path = tmp_path / "x.json"
    {
        "device": lambda: path.symlink_to("/dev/zero"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[kind]()
    with pytest.raises(ConfigError, match=r"x.json: not a regular file"):
        read.read_object(path)


def test_a_file_that_is_missing_or_too_large(tmp_path):
    with pytest.raises(ConfigError, match=r"x: cannot be read \(No such file"):
        read.read_bytes(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"12345")
    with pytest.raises(ConfigError, match="5 bytes, where 4 are the most"):
        read.read_bytes(tmp_path / "x", limit=4)
    assert read.read_bytes(tmp_path / "x", limit=5) == b"12345"


KINDS = {"size": int, "rate": float, "on": bool, "many": (int, list)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 1.5}, "size=1.5: must be a whole number"),
        ({"size": True}, "size=True: must be a whole number"),
        ({"rate": "x" * 999}, r"rate='x+\.\.\.: must be a number"),
        ({"rate": float("nan")}, "rate=nan: must be a number"),
        ({"on": 1}, "on=1: must be true or false"),
        ({"many": "\x1b"}, r"many='\\x1b':.*number"),
    ],
)
def test_types(tmp_path, values, message):
    (tmp_path / "x.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=message):
        read.read_object(tmp_path / "x.json", KINDS)


def test_values_of_these_types_and_null_are_read(tmp_path):
    values = {"size": None, "rate": 1, "on": False, "many": [1], "other": {}}
    (tmp_path / "x.json").write_text(json.dumps(values))
    assert read.read_object(tmp_path / "x.json", KINDS) == values
