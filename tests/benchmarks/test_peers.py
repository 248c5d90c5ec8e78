"""The page of peers: its turns interleave, and what a peer lacks is said."""

import json
import re
import sys

import pytest

from benchmarks import peers, peers_turn
from benchmarks.peer_jobs import BATCH, NEW, STEPS

CONFIG = {"vocab_size": 40, "hidden_size": 5}


@pytest.fixture
def folders(tmp_path):
    for name in ("writer", "embedder"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes(4000))
        (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path / "writer"), str(tmp_path / "embedder")


def test_peers_take_turns_and_a_missing_one_is_named(monkeypatch, tmp_path, capsys, folders):
    asked = []

    def ask(python, *words):
        if words[0] == "-c":
            return {"jax": "0.10"}
        _, _, job, peer, threads, *_ = words
        if job == "limits":
            return MACHINE
        if job.startswith("prepare"):
            return {}
        asked.append((peer, threads))
        if peer == "CTranslate2":
            return {"missing": "No module named 'ctranslate2'"}
        return {"whole": 9.0, "whole_wall": 8.0, "cpu": 2.0 + len(asked), "wall": 2.0, "peak": 3e8}

    monkeypatch.setattr(peers, "ask", ask)
    out = tmp_path / "peers.md"
    words = [f"--writer={folders[0]}", f"--embedder={folders[1]}", f"--out={out}"]
    monkeypatch.setattr("sys.argv", ["peers", *words, "--job=generate 8 int8", "--threads=1"])
    peers.main()
    able = ["ours", "transformers", "transformers static", "CTranslate2", "llama.cpp"]
    assert asked == [(peer, "1") for peer in able] * 2
    page = out.read_text()
    # 1000 weights are multiplied with for each token that is read or written
    share = f"{2 * 1000 * 8 * (32 + NEW) / 1e6 / 2:.0%}"
    rate = f"{8 * NEW / 2:.1f} tokens"
    assert f"| ours | 9.0 | 8.0 | 3.00 | 2.00 | {rate} | {share} | 300 |" in page
    assert "CTranslate2 | No module named 'ctranslate2' |" in page
    assert "CTranslate2" in capsys.readouterr().out


def test_a_job_that_is_a_whole_process_is_done_once(folders):
    job = f"classify {BATCH} float32"
    seconds = peers.limit(job, *folders, MACHINE)
    assert seconds == pytest.approx(2 * 800 * 3 * STEPS * BATCH * 50 / 1e6)
    found = {"whole": 900.0, "whole_wall": seconds * 4, "peak": 1e9}
    line = peers.row(job, "ours", found, seconds)
    assert f"| {STEPS / seconds / 4:,.1f} steps | 25% | 1,000 |" in line
    assert "classify" in peers_turn.ONCE


MACHINE = {"flops": 1e6, "bytes": 1e6, "tokens_a_text": 50.0}


@pytest.mark.parametrize("job", peers.JOBS)
def test_each_job_is_ours_and_has_a_limit_or_none(job, folders):
    assert job.split()[0] in peers_turn.jobs_of("ours")
    assert (peers.limit(job, *folders, MACHINE) > 0) == (not job.startswith("tokenize"))


def test_make_peers_makes_each_environment():
    makefile = (peers.ROOT / "Makefile").read_text()
    (names,) = re.findall(r"^PEER_ENVIRONMENTS := .*,(.*)\)$", makefile, re.MULTILINE)
    assert sorted(names.split()) == sorted(set(peers.ENVIRONMENT_OF.values()))


def test_an_environment_that_is_not_there_is_named(tmp_path):
    python = tmp_path / "bin/python"
    assert peers.ask(str(python), "-c", "0") == {"missing": f"no {python}; make peers makes it"}


def test_a_turn_says_what_its_peer_lacks(monkeypatch, capsys):
    monkeypatch.setattr(peers_turn.os, "sched_setaffinity", lambda *_: None)
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("sys.argv", ["turn", "load 1 float32", "CTranslate2", "1", "x", "y", "z"])
    monkeypatch.setattr(peers_turn.tempfile, "tempdir", None)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    peers_turn.main()
    assert "ctranslate2" in json.loads(capsys.readouterr().out)["missing"]
