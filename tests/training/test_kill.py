"""The hardest stop: kill -9 of the real command in mid-training, and the same command again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.training import tiny_runs

ROOT = Path(__file__).parents[2]
STEPS = 40


def command(folder, workdir):
    settings = {
        "data": {"path": tiny_runs.text(folder), "cache": folder / "cache", "length": 32, "eval_fraction": 0.1},
        "data.tokenizer": {"name": "bytes"},
        "model": {"d_model": 16, "mlp_dim": 32, "decoder_layers": 1, "dropout": 0.1, "vocab_size": 0},
        "train": {
            "steps": STEPS,
            "batch_size": 8,
            "log_every": 5,
            "eval_every": 20,
            "eval_batches": 1,
            "checkpoint_every": 3,
            "sample_tokens": 0,
        },
        "mesh": {"data": 1},
    }
    overrides = [f"--config.{part}.{k}={v}" for part, fields in settings.items() for k, v in fields.items()]
    return [sys.executable, "train.py", "--config=configs/gpt2_tiny.py", f"--workdir={workdir}", *overrides]


def finish(folder, workdir):
    done = subprocess.run(command(folder, workdir), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    meta = json.loads(next((workdir / "checkpoints" / str(STEPS) / "meta").rglob("metadata")).read_text())
    return meta["leaves"], done


def test_killed_and_started_again_ends_bit_for_bit_where_the_uninterrupted_run_ends(tmp_path):
    straight, _ = finish(tmp_path, tmp_path / "straight")
    process = subprocess.Popen(
        command(tmp_path, tmp_path / "killed"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    checkpoints = tmp_path / "killed" / "checkpoints"
    while not (checkpoints / "6").exists():  # the save of step 9 is then under way, or near
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (checkpoints / str(STEPS)).exists()
    killed, done = finish(tmp_path, tmp_path / "killed")
    assert "resuming" in done.stdout and "0 after step two" in done.stdout
    assert killed == straight
    assert not done.stderr, done.stderr
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines if '"train"' in line] == list(range(5, STEPS + 1, 5))
