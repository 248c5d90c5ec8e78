"""The arithmetic of the comparison: warm-up turns do not count, and ratios are of paired turns."""

import argparse
from pathlib import Path

from benchmarks import fine_tuning


class Side:
    def __init__(self, python, module, arguments):
        self.slower = 3 if module.endswith("torch") else 1
        self.about = {"steps": 120, "jax": "1"} if self.slower == 1 else {"torch": "2"}
        self.turns = []

    def ask(self, request):
        if request == "score":
            return {"accuracy": 0.5}
        seconds = 0.4 * self.slower if self.turns else 9.0  # the first turn compiles
        return {"wall": seconds, "cpu": seconds / 2, "computed": 120, "real": 100, "loss": 1.0}

    def close(self):
        pass


def test_turns_are_paired_and_the_first_does_not_count(monkeypatch):
    monkeypatch.setattr(fine_tuning, "Side", Side)
    monkeypatch.setattr(fine_tuning, "REST", 0.0)
    fields = {"torch": "python", "epochs": 1.0, "rate": 1e-3, "seed": 0, "threads": 1}
    found = fine_tuning.compare(argparse.Namespace(data=Path("x"), **fields))
    assert "| flaxformer_lite | 10.0 | 5.0 | 1.20 | 50.0% | 1.000 |" in found
    assert "| transformers | 30.0 | 15.0 |" in found
    assert "3.00 by the clock, 3.00 in CPU time; 120 steps, seed 0, jax 1, torch 2" in found
