"""The GPU benchmark's bookkeeping and its page; that its turns run is a nightly test."""

import json

import pytest

from benchmarks import gpu
from benchmarks.gpu_turn import ATTENTIONS, BATCHES


def run(monkeypatch, tmp_path, *flags):
    """Runs the benchmark; returns its rows by peer, and its page."""
    out = tmp_path / "gpu"
    monkeypatch.setattr("sys.argv", ["gpu", f"--out={out}", *flags])
    gpu.main()
    results = json.loads(out.with_suffix(".json").read_text())["results"]
    return {row["peer"]: row for row in results}, out.with_suffix(".md").read_text()


def test_peers_take_turns_and_keep_the_batch_that_fitted(monkeypatch, tmp_path, capsys):
    asked = []

    def ask(python, name, peer, batch, tiny, embedder):
        asked.append((name, peer, batch))
        if peer == "cudnn":
            return {"missing": "attention 'cudnn': head_dim 12"}
        seconds = {"auto": 0.1, "blockwise": 0.2, "dense": 0.4, "torch": 0.2}[peer]
        flops = 0 if peer == "torch" else 1e14
        figures = {"batch": 32, "seconds": seconds, "tokens": 32768, "flops": flops, "first": 9.0}
        return {**figures, "device": "NVIDIA H100 80GB HBM3", "version": "jax 1", "memory": 5e9}

    monkeypatch.setattr(gpu, "ask", ask)
    rows, page = run(monkeypatch, tmp_path, "--case=gpt2_124m", "--rounds=2")
    all_peers = [*ATTENTIONS, "torch"]
    first = [("gpt2_124m", peer, BATCHES[0]) for peer in all_peers]
    second = [one if one[1] == "cudnn" else (*one[:2], 32) for one in first]
    assert asked == first + second
    assert rows["auto"]["tokens_per_second"] == pytest.approx(327680)
    assert rows["auto"]["turns"] == [0.1, 0.1]
    # Torch's work is counted with the FLOPs a token that ours has.
    assert rows["auto"]["utilisation"] == pytest.approx(1e15 / 989e12)
    assert rows["torch"]["utilisation"] == pytest.approx(0.5e15 / 989e12)
    assert "| gpt2_124m | torch | 32 | 163,840 | 51% | 9.0 | 5.0 |" in page
    assert "| gpt2_124m | cudnn | attention 'cudnn': head_dim 12 | | | | |" in page
    assert "NVIDIA H100 80GB HBM3; jax 1" in page
    assert "blockwise" in capsys.readouterr().out


def test_what_fits_at_no_batch_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "ask", lambda *_: {"batch": 0})
    rows, page = run(monkeypatch, tmp_path, "--case=bert_base", "--rounds=1")
    assert [row["batch"] for row in rows.values()] == [0] * len(ATTENTIONS)
    assert "| bert_base | dense | fits at no batch | | | | |" in page


def test_a_peer_without_an_environment_is_named(tmp_path):
    found = gpu.ask(str(tmp_path / "python"), "decode_b1", "vllm", 1, False)
    assert "make gpu makes it" in found["missing"]


@pytest.mark.nightly
def test_a_tiny_run_writes_the_page_without_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", "")  # the tests have several devices
    cases = ("attention_llama", "attention_bert", "gpt2_124m", "llama_1b", "decode_b1")
    flags = [f"--case={name}" for name in cases]
    flags += ["--tiny", "--rounds=1", f"--environments={tmp_path}"]
    _, page = run(monkeypatch, tmp_path, *flags)
    lines = page.splitlines()
    for start, end in (
        ("| attention_llama | blockwise | 2, 64, 4, 2, 16, causal |", "yes |"),
        ("| attention_bert | blockwise | 2, 64, 4, 2, 16, padding |", "yes |"),
        ("| attention_bert | cudnn | attention 'cudnn': ", "| | | | | |"),
        ("| gpt2_124m | auto | 2 |", "|"),
        ("| gpt2_124m | torch | no ", "| | | | |"),
        ("| llama_1b | dense | 2 |", "|"),
        ("| decode_b1 | auto | 1 |", "|"),
        ("| decode_b1 | vllm | no ", "| | | | |"),
    ):
        found = [line for line in lines if line.startswith(start)]
        assert len(found) == 1 and found[0].endswith(end), (start, page)
