import contextlib
import os
import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import shards, tokenizing
from flaxformer_lite.data.corpus import open_corpus
from flaxformer_lite.storage import content_cache

TEXT = ("text",)


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch):
    monkeypatch.setattr(shards, "PIECE", 150)  # so that a shard may begin within a document


@pytest.fixture
def asked(monkeypatch):
    """Makes every text a large one, of shards of 2,000 characters; lists those that are made."""
    made = []
    save = shards.save
    monkeypatch.setattr(tokenizing, "SMALL", 0)
    monkeypatch.setattr(shards, "SHARD", 2000)

    def listed(path, arrays):
        made.append(path.name)
        save(path, arrays)

    monkeypatch.setattr(shards, "save", listed)
    return made


@pytest.fixture
def cores(monkeypatch):
    return lambda count: monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))


def arrays(found):
    return {
        name: (tokens.ids.tolist(), tokens.offsets.tolist())
        for name, tokens in found.tokens.items()
    }


@pytest.fixture
def whole(experiment, tmp_path):
    """The tokens of a text that is small, and not cut into shards."""
    return lambda **options: arrays(
        open_corpus(experiment(cache=str(tmp_path / "whole"), **options).data, TEXT)
    )


@pytest.mark.parametrize(
    ("name", "count"), [("bytes", 1), ("byte_bpe", 3), ("sentencepiece", 2), ("words", 2)]
)
def test_any_number_of_threads_writes_the_same(
    experiment, tmp_path, whole, cores, request, name, count
):
    due = whole(tokenizer=name, tokens=430)
    asked = request.getfixturevalue("asked")
    cores(count)
    found = open_corpus(experiment(tokenizer=name, tokens=430).data, TEXT)
    assert arrays(found) == due and len(asked) == len(set(asked)) > 10
    assert [path.name for path in (tmp_path / "cache").glob("tokens*")] == [
        f"tokens-{found.fingerprint}"
    ]


@pytest.fixture
def fails_at(monkeypatch):
    """fails_at(n, error) ends the work at its shard n."""

    def install(number, error):
        save = shards.save
        count = iter(range(1000))

        def save_or_fail(path, arrays):
            if next(count) == number:
                raise error
            save(path, arrays)

        monkeypatch.setattr(shards, "save", save_or_fail)
        return lambda: monkeypatch.setattr(shards, "save", save)

    return install


@pytest.mark.parametrize(
    ("failure", "error", "said"),
    [
        (
            OSError(28, "No space left on device"),
            ConfigError,
            r"data.cache=.*: cannot write there \(No space left on device\); free some space",
        ),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_what_was_done_before_a_failure_is_kept(
    experiment, tmp_path, whole, cores, fails_at, request, failure, error, said
):
    due = whole()
    asked = request.getfixturevalue("asked")
    cores(1)
    mend = fails_at(5, failure)
    with pytest.raises(error, match=said):
        open_corpus(experiment().data, TEXT)
    (parts,) = (tmp_path / "cache").glob("*.parts")
    made = {path.name for path in parts.glob("*.npz")}
    # the thread may be quicker with the next than this one is with its end
    numbers = {int(name[:6]) for name in made}
    assert numbers >= {0, 1, 2, 3, 4} and 5 not in numbers and not list(parts.glob("*.tmp"))
    damaged = parts / sorted(made)[2]
    damaged.write_bytes(damaged.read_bytes()[:-40])
    mend()
    asked.clear()
    assert arrays(open_corpus(experiment().data, TEXT)) == due
    assert damaged.name in asked and made.isdisjoint(set(asked) - {damaged.name}), (
        "only what is missing is made"
    )
    assert not list((tmp_path / "cache").glob("*.parts"))


def test_an_interrupt_does_not_wait_for_the_rest_of_a_shard(monkeypatch):
    ended = threading.Event()
    pieces = tokenizing._until(ended, [("train", "a", False)] * 9)
    next(pieces)
    ended.set()
    with pytest.raises(CancelledError):
        next(pieces)


def test_another_text_finds_nothing_of_the_old(experiment, jsonl, asked, fails_at, cores):
    cores(1)
    mend = fails_at(5, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        open_corpus(experiment().data, TEXT)
    mend()
    asked.clear()
    jsonl.write_text(jsonl.read_text().replace("quick", "slow"))
    open_corpus(experiment().data, TEXT)
    assert min(asked).startswith("000000-")


def test_of_hosts_that_share_the_cache_one_tokenizes_and_the_others_wait(
    experiment, tmp_path, whole, cores, request, monkeypatch
):
    due = whole()
    asked = request.getfixturevalue("asked")
    cores(1)
    found = {}
    messages = []
    waits = threading.Event()
    save = shards.save

    @contextlib.contextmanager
    def working(message):
        messages.append(message)
        waits.set()
        yield

    def save_once_the_other_waits(path, arrays):
        assert waits.wait(600)
        save(path, arrays)

    monkeypatch.setattr(content_cache.progress, "working", working)
    monkeypatch.setattr(shards, "save", save_once_the_other_waits)

    def host(number):
        found[number] = open_corpus(experiment().data, TEXT)

    hosts = [threading.Thread(target=host, args=(number,)) for number in range(2)]
    for thread in hosts:
        thread.start()
    for thread in hosts:
        thread.join()
    assert arrays(found[0]) == arrays(found[1]) == due
    assert len(asked) == len(set(asked)) > 10, "no shard is made twice"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [
        f"tokens-{found[0].fingerprint}"
    ], "and nothing else is left"
    assert messages == [f"waiting for another process to write tokens-{found[0].fingerprint}"]


def test_a_damaged_shard_is_deleted(tmp_path):
    shards.save(path := tmp_path / "a.npz", {"train.bin": np.arange(1000)})
    assert shards.is_valid(path) and shards.load(path)["train.bin"].tolist() == list(range(1000))
    path.write_bytes(path.read_bytes()[:500] + b"x" + path.read_bytes()[501:])
    assert not shards.is_valid(path)
    with pytest.raises(ConfigError, match=r"damaged.*makes it anew"):
        shards.load(path)
    assert not path.exists()
