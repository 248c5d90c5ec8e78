"""Annotations of fields, besides the values that they allow."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from flaxformer_lite.config import ConfigError, rules
from flaxformer_lite.config.rules import MAY_CHANGE, OF_TASK, Record, Size, fields_with_mark
from flaxformer_lite.storage import stores
from flaxformer_lite.storage.stores import StorageError

Kept = Annotated[str, MAY_CHANGE]


@dataclass(frozen=True, kw_only=True)
class Inner(Record):
    name: Kept = ""
    size: Size = 1


@dataclass(frozen=True, kw_only=True)
class Outer(Record):
    every: Annotated[Size, MAY_CHANGE] = 1
    names: Annotated[tuple[str, ...], MAY_CHANGE] = ()
    number: Annotated[int, OF_TASK] | None = None
    inner: Inner = field(default_factory=Inner)
    plain: str = ""


def test_marked_fields_are_listed_with_those_of_inner_records():
    assert fields_with_mark(Outer, MAY_CHANGE) == ("every", "names", "inner.name")
    assert fields_with_mark(Outer, OF_TASK) == ("number",)
    assert fields_with_mark(Outer, OF_TASK, MAY_CHANGE) == (
        "every",
        "names",
        "number",
        "inner.name",
    )


def test_a_mark_changes_nothing_about_the_values():
    assert Outer(number=None, names=("a",)).number is None
    for bad in ({"every": 0}, {"names": ["a"]}, {"number": "1"}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            Outer(**bad)


@pytest.mark.parametrize(
    "address",
    ["s3://b//x", "gs://b/../c/x", "a.txt,s3://b//x"],
)
def test_an_address_that_libraries_would_read_as_another_is_refused(address):
    assert "a name between two slashes" in rules.is_place(address)
    refused = pytest.raises(StorageError, match="a name between two slashes")
    with refused, stores.open_bucket(address.rpartition(",")[2]):
        pass


@pytest.mark.parametrize("address", ["s3://b", "gs://b/", "gs://b/x/y/", "s3://b/x,gs://b/*.txt"])
def test_other_addresses_are_not(address):
    assert rules.is_place(address) == ""
