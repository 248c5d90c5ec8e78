"""The page of peers: its turns interleave, and what a peer lacks is said."""

import json
import sys

from benchmarks import peers, peers_turn


def test_peers_take_turns_and_a_missing_one_is_named(monkeypatch, tmp_path, capsys):
    asked = []

    def ask(python, *words):
        if words[0] == "-c":
            return {"jax": "0.10"}
        _, _, job, peer, threads, _, _ = words
        if job == "limits":
            return {"flops": 2e11, "bytes": 1e10}
        asked.append((peer, threads))
        if peer == "CTranslate2":
            return {"missing": "No module named 'ctranslate2'"}
        return {"whole": 9.0, "cpu": 2.0 + len(asked), "wall": 2.0, "peak": 3e8}

    monkeypatch.setattr(peers, "ask", ask)
    writer = tmp_path / "writer"
    writer.mkdir()
    (writer / "model.safetensors").write_bytes(bytes(1000))
    out = tmp_path / "peers.md"
    words = [f"--writer={writer}", "--embedder=x", f"--out={out}", "--job=generate 8 int8"]
    monkeypatch.setattr("sys.argv", ["peers", *words, "--threads=1"])
    peers.main()
    assert asked == [(peer, "1") for peer in peers_turn.PEERS] * 2
    page = out.read_text()
    rate = f"{8 * peers_turn.NEW / 2:.0f}"
    assert f"| generate 8 int8 | ours | 9.0 | 3.00 | 2.00 | {rate} | 0% | 300 |" in page
    assert "CTranslate2 | No module named 'ctranslate2' |" in page
    assert "CTranslate2" in capsys.readouterr().out


def test_a_turn_says_what_its_peer_lacks(monkeypatch, capsys):
    monkeypatch.setattr(peers_turn.os, "sched_setaffinity", lambda *_: None)
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("sys.argv", ["turn", "load 1 float32", "CTranslate2", "1", "x", "y"])
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    peers_turn.main()
    assert "ctranslate2" in json.loads(capsys.readouterr().out)["missing"]
