"""A handful of the kills that `make faults` does fifty of: the hardest stop of the real command, and the same again."""

import random

from flaxformer_lite.training.report import metrics
from tools import faults


def test_killed_at_any_instant_in_a_save_and_in_a_deletion_nothing_is_lost(tmp_path, capfd, monkeypatch):
    kill, killed = faults.kill_once, []
    monkeypatch.setattr(faults, "kill_once", lambda *args: killed.append(kill(*args)) or killed[-1])
    draw = random.uniform
    monkeypatch.setattr(random, "uniform", lambda low, high: draw(low, min(high, 5)))  # the first kill comes early
    faults.run(tmp_path, kills=3, steps=60)
    said = capfd.readouterr()
    assert "| 3 |" in said.out and not said.err
    (_, newest, _), (_, _, resumed) = killed[1:]
    assert resumed == newest > 0
    records = metrics.read(tmp_path / "killed" / "metrics.jsonl")
    assert [record["step"] for record in records if record["split"] == "train"] == list(range(1, 61))
