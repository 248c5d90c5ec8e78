import shutil

import pytest

import flaxformer_lite
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runs.report.meter import Meter
from tests.training import tiny_runs


@pytest.fixture
def wait(monkeypatch):
    """wait(seconds): lets time pass, which stands still otherwise."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def passes(seconds):
        now[0] += seconds

    return passes


def stepping():
    clock = Clock()
    clock.turn_to("steps")
    return clock


def test_meter_averages_the_interval_and_times_it(wait):
    meter = Meter(tokens_per_step=100, flops_per_step=2_000, peak=1e6, clock=stepping())
    for number, loss in enumerate((4.0, 2.0, 3.0)):
        meter.add({"loss": loss, "learning_rate": loss}, timed=number > 0)
        wait(0.02)
    record = meter.record(3)
    assert record["loss"] == 3.0 and record["learning_rate"] == 3.0  # the mean, and the last
    assert record["step"] == 3 and record["split"] == "train"
    assert record["step_seconds"] == pytest.approx(0.03)  # of two steps that are timed
    assert record["tokens_per_second"] == pytest.approx(100 / 0.03)
    assert record["mfu"] == pytest.approx(2_000 / 0.03 / 1e6)
    wait(0.02)
    meter.add({"loss": 1.0, "learning_rate": 0.5}, timed=True)
    assert meter.record(4)["loss"] == 1.0


def test_the_wait_for_data_is_a_share_of_the_time(wait):
    meter = Meter(100, 1, None, stepping())
    for number in range(5):
        with meter.clock.during("data"):
            wait(0.01)
        meter.add({"loss": float(number)}, timed=number > 0)
        wait(0.03)
    assert meter.record(5)["data_wait"] == pytest.approx(4 * 0.01 / (4 * 0.01 + 5 * 0.03))
    meter.add({"loss": 1.0}, timed=True)
    wait(0.02)
    assert meter.record(6)["data_wait"] == 0.0


def test_pauses_and_the_first_step_which_waits_for_the_compiler_are_not_training_time(wait):
    meter = Meter(100, 1, None, stepping())
    meter.add({"loss": 1.0}, timed=False)
    record = meter.record(1)
    assert "tokens_per_second" not in record and "mfu" not in record
    with meter.clock.during("evaluation"):
        wait(0.2)
    wait(0.1)
    meter.add({"loss": 1.0}, timed=True)
    record = meter.record(2)
    assert record["step_seconds"] == pytest.approx(0.1)
    assert record["seconds_evaluation"] == pytest.approx(0.2)
    whole = sum(meter.clock.seconds.values())
    assert record["goodput"] == pytest.approx(record["seconds_steps"] / whole)


def test_seconds_are_of_the_interval_and_goodput_of_all_starts(wait):
    earlier = {"steps": 3600.0, "repeated": 1200.0, "data": 1200.0}
    meter = Meter(100, 1, None, stepping(), earlier=earlier)
    meter.clock.seconds["repeated"] += 1200.0  # what the last start had done after its checkpoint
    wait(1.0)
    meter.add({"loss": 1.0}, timed=False)
    record = meter.record(1)
    assert record["goodput"] == pytest.approx(0.5, abs=0.01)
    assert (record["seconds_repeated"], record["seconds_steps"]) == (1200.0, 1.0)
    assert "seconds_data" not in record
    wait(1.0)
    meter.add({"loss": 1.0}, timed=True)
    assert "seconds_repeated" not in meter.record(2)


TIMED = ("seconds_", "step_seconds", "tokens_per", "data_wait", "goodput", "peak_")


def measured(workdir):
    """Returns the records of training steps without their times."""
    records = [r for r in metrics.read(workdir / "metrics.jsonl") if r["split"] == "train"]
    return [{k: v for k, v in r.items() if not k.startswith(TIMED)} for r in records]


def test_a_record_whose_steps_a_checkpoint_divides_is_that_of_the_undisturbed_run(tmp_path):
    cfg = tiny_runs.config(tmp_path, train={"steps": 4, "log_every": 4, "checkpoint_every": 3})
    flaxformer_lite.run(cfg, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed/checkpoints/4")  # as a kill after step 3 leaves it
    flaxformer_lite.run(cfg, tmp_path / "killed")
    whole = measured(tmp_path / "whole")
    assert [record["step"] for record in whole] == [4]
    assert measured(tmp_path / "killed") == whole
