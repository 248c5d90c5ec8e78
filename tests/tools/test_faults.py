"""A handful of the stops that `make faults` does fifty of: the hardest ones of the real command,
and the same again."""

import random
import signal

import pytest

from tests.objectives import tables
from tools import faults


@pytest.fixture
def stopped(monkeypatch):
    """Lets the first stop come early; holds what every stop returns."""
    stop = faults.stop_once
    draw = random.uniform
    held = []
    monkeypatch.setattr(faults, "stop_once", lambda *args: held.append(stop(*args)) or held[-1])
    monkeypatch.setattr(random, "uniform", lambda low, high: draw(low, min(high, 5)))
    return held


@pytest.mark.nightly
def test_killed_at_any_instant_in_a_save_and_in_a_deletion_nothing_is_lost(
    tmp_path, capfd, stopped
):
    faults.run(tmp_path, kills=3, steps=60)
    said = capfd.readouterr()
    assert "| 3 |" in said.out and not said.err
    (_, newest, _, _), (_, _, resumed, _) = stopped[1:]
    assert resumed == newest > 0
    trained = tables.read_split(tmp_path / "stopped", "train")
    assert [record["step"] for record in trained] == list(range(1, 61))


@pytest.mark.nightly
def test_a_signal_is_never_lost(tmp_path, capfd, stopped):
    faults.run(tmp_path, kills=2, steps=40, number=signal.SIGTERM)
    assert {outcome for *_, outcome in stopped} >= {"saved"} and not capfd.readouterr().err
