import os
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import shards, tokenizing
from flaxformer_lite.data.corpus import open_corpus

TEXT = ("text",)


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch):
    monkeypatch.setattr(shards, "PIECE", 150)  # so that a shard may begin within a document


@pytest.fixture
def asked(monkeypatch):
    """Makes every text a large one, of shards of 2,000 characters; lists those that are handed to a
    process."""
    handed = []
    make = tokenizing._Process.make
    monkeypatch.setattr(tokenizing, "SMALL", 0)
    monkeypatch.setattr(shards, "SHARD", 2000)

    def listed(process, shard, path):
        handed.append(path.name)
        make(process, shard, path)

    monkeypatch.setattr(tokenizing._Process, "make", listed)
    return handed


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
    """The tokens that one process makes of a text that is small to it."""
    return lambda **options: arrays(
        open_corpus(experiment(cache=str(tmp_path / "whole"), **options).data, TEXT)
    )


@pytest.mark.parametrize(
    ("name", "count"), [("bytes", 1), ("byte_bpe", 3), ("sentencepiece", 2), ("words", 2)]
)
def test_any_number_of_processes_writes_the_same(
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
    """fails_at(n, how) ends the work at its shard n."""

    def install(number, how):
        make = tokenizing._Process.make
        count = iter(range(1000))

        def make_or_fail(process, shard, path):
            if next(count) == number:
                how(process)
            make(process, shard, path)

        monkeypatch.setattr(tokenizing._Process, "make", make_or_fail)
        return lambda: monkeypatch.setattr(tokenizing._Process, "make", make)

    return install


def interrupt(_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        (
            lambda process: process._run.kill(),
            ChildProcessError,
            "killed by SIGKILL, as .* memory runs out; finished shards",
        ),
        (interrupt, KeyboardInterrupt, None),
    ],
)
def test_what_was_done_before_a_kill_is_kept(
    experiment, tmp_path, whole, cores, fails_at, request, how, error, said
):
    due = whole()
    asked = request.getfixturevalue("asked")
    cores(1)
    mend = fails_at(5, how)
    with pytest.raises(error, match=said):
        open_corpus(experiment().data, TEXT)
    (parts,) = (tmp_path / "cache").glob("*.parts")
    made = {path.name for path in parts.glob("*.npz")}
    # the process may be quicker with the next than this one is with its end
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


def test_another_text_finds_nothing_of_the_old(experiment, jsonl, asked, fails_at, cores):
    cores(1)
    mend = fails_at(5, interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_corpus(experiment().data, TEXT)
    mend()
    asked.clear()
    jsonl.write_text(jsonl.read_text().replace("quick", "slow"))
    open_corpus(experiment().data, TEXT)
    assert min(asked).startswith("000000-")


def test_of_hosts_that_share_the_cache_one_tokenizes_and_the_others_wait(
    experiment, tmp_path, whole, cores, request, capsys
):
    due = whole()
    asked = request.getfixturevalue("asked")
    cores(1)
    found = {}
    both = threading.Barrier(2)

    def host(number):
        both.wait()
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
    assert "waiting for another process to write tokens-" in capsys.readouterr().err


def test_a_full_disk_is_one_sentence(experiment, asked, monkeypatch):
    start = subprocess.Popen

    def started(*args, **options):
        process = start(*args, **options)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100, 100))
        return process

    monkeypatch.setattr(tokenizing.subprocess, "Popen", started)
    with pytest.raises(
        ConfigError, match=r"data.cache=.*: cannot write there \(File too large\); free some space"
    ):
        open_corpus(experiment().data, TEXT)


def test_a_process_does_not_import_jax():
    code = "import flaxformer_lite.data.shards, sys; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_process_imports_nothing_from_the_current_folder(experiment, tmp_path, cores, request):
    request.getfixturevalue("asked")
    cores(1)
    data = experiment().data
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "numpy.py").write_text("open('ran', 'w').close()")
    request.getfixturevalue("monkeypatch").chdir(elsewhere)
    open_corpus(data, TEXT)
    assert not (elsewhere / "ran").exists()


def test_a_damaged_shard_is_deleted(tmp_path):
    shards.save(path := tmp_path / "a.npz", {"train.bin": np.arange(1000)})
    assert shards.is_valid(path) and shards.load(path)["train.bin"].tolist() == list(range(1000))
    path.write_bytes(path.read_bytes()[:500] + b"x" + path.read_bytes()[501:])
    assert not shards.is_valid(path)
    with pytest.raises(
        ConfigError, match="was damaged, and is deleted; the same command makes it anew"
    ):
        shards.load(path)
    assert not path.exists()
