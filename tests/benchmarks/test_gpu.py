"""The GPU benchmark's bookkeeping; that its turns run is shown by `python -m benchmarks.gpu
--tiny`."""

import json
import sys

import pytest

from benchmarks import gpu
from benchmarks.gpu_turn import BATCHES


def test_peers_take_turns_and_keep_the_batch_that_fitted(monkeypatch, tmp_path, capsys):
    asked = []

    def ask(python, name, peer, batch, tiny):
        asked.append((name, peer, batch))
        seconds = {"auto": 0.1, "blockwise": 0.2, "dense": 0.4, "torch": 0.2}[peer] * (
            1 + len(asked) // 100
        )
        flops = 0 if peer == "torch" else 1e14
        return {
            "batch": 32,
            "seconds": seconds,
            "tokens": 32768,
            "flops": flops,
            "device": "NVIDIA H100 80GB HBM3",
        }

    monkeypatch.setattr(gpu, "ask", ask)
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(
        "sys.argv", ["gpu", "--case=gpt2_124m", "--rounds=2", "--torch=python", f"--out={out}"]
    )
    gpu.main()
    peers = ["auto", "blockwise", "dense", "torch"]
    assert asked == [("gpt2_124m", peer, batch) for batch in (BATCHES[0], 32) for peer in peers]
    rows = {row["peer"]: row for row in json.loads(out.read_text())["results"]}
    assert rows["auto"]["tokens_per_second"] == pytest.approx(327680) and rows["auto"]["turns"] == [
        0.1,
        0.1,
    ]
    # Torch's work is counted with the FLOPs a token that ours has.
    assert rows["auto"]["utilisation"] == pytest.approx(1e15 / 989e12)
    assert rows["torch"]["utilisation"] == pytest.approx(0.5e15 / 989e12)
    assert "blockwise" in capsys.readouterr().out


def test_what_fits_at_no_batch_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "ask", lambda *_: {"batch": 0})
    out = tmp_path / "gpu.json"
    monkeypatch.setattr("sys.argv", ["gpu", "--case=bert_base", "--rounds=1", f"--out={out}"])
    gpu.main()
    assert [row["batch"] for row in json.loads(out.read_text())["results"]] == [0, 0, 0]


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["gpt2_124m", "decode_b1"])
def test_a_tiny_turn_runs_without_a_gpu(case, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")  # the tests have several devices
    answer = gpu.ask(sys.executable, case, "auto", 1, tiny=True)
    assert answer["batch"] == 1
    assert answer["seconds"] > 0
