import json
import time

import pytest

from flaxformer_lite.training.report.metrics import Meter, Recorder, read


def test_meter_averages_the_interval_and_times_it():
    meter = Meter(tokens_per_step=100, flops_per_step=2_000, peak=1e6)
    for loss in (4.0, 2.0, 3.0):
        meter.add({"loss": loss, "learning_rate": loss})
        time.sleep(0.02)
    record = meter.record(3)
    assert record["loss"] == 3.0 and record["learning_rate"] == 3.0  # the mean, and the last
    assert record["step"] == 3 and record["split"] == "train"
    assert record["step_seconds"] >= 0.02
    assert record["tokens_per_second"] == pytest.approx(100 / record["step_seconds"])
    assert record["mfu"] == pytest.approx(2_000 / record["step_seconds"] / 1e6)
    meter.add({"loss": 1.0, "learning_rate": 0.5})
    assert meter.record(4)["loss"] == 1.0


def test_the_first_step_waits_for_the_compiler_and_is_not_timed():
    meter = Meter(100, 1, None)
    meter.add({"loss": 1.0})
    record = meter.record(1)
    assert "tokens_per_second" not in record and "mfu" not in record


def test_the_wait_for_data_is_a_share_of_the_time():
    def slow():
        for number in range(5):
            time.sleep(0.02)
            yield number

    meter = Meter(100, 1, None)
    for number in meter.waiting(slow()):
        meter.add({"loss": float(number)})
        time.sleep(0.02)
    assert 0.3 < meter.record(5)["data_wait"] < 0.7
    meter.add({"loss": 1.0})
    time.sleep(0.02)
    assert meter.record(6)["data_wait"] == 0.0


def test_pauses_are_not_training_time():
    meter = Meter(100, 1, None)
    meter.add({"loss": 1.0})
    with meter.pause():
        time.sleep(0.2)
    meter.add({"loss": 1.0})
    assert meter.record(2)["step_seconds"] < 0.1


def test_recorder_rewinds_to_the_restored_step(tmp_path):
    recorder = Recorder(tmp_path, -1)
    for step in (10, 20, 30):
        recorder.add({"step": step, "split": "train", "loss": 1.0 / step})
    recorder.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 40, "spl')  # killed while writing
    again = Recorder(tmp_path, 20)
    again.add({"step": 25, "split": "eval", "loss": 0.5})
    again.close()
    assert [r["step"] for r in read(tmp_path / "metrics.jsonl")] == [10, 20, 25]
    assert again.of("eval") == [{"step": 25, "split": "eval", "loss": 0.5}]
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_damaged_lines_are_dropped_with_a_notice_and_a_cut_one_without(tmp_path):
    lines = [b'{"step": 1, "split": "train", "loss": 2.0}', b'{"step": 2, "split": "tr\xffin"}', b"[" * 5000, b'{"step": "3"}',
             b'{"step": 3, "split": "train", "loss": "low"}', b'{"step": 4, "split": "eval"}', b'{"step": 5, "sp']  # fmt: skip
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    recorder = Recorder(tmp_path, 9)
    recorder.close()
    assert (
        [record["step"] for record in recorder.history]
        == [1, 4]
        == [r["step"] for r in read(tmp_path / "metrics.jsonl")]
    )
    assert "line 2, 3, 4, 5; dropped" in recorder.notices[0] and Recorder(tmp_path, 9).notices == []


def test_tensorboard_gets_the_same_figures(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path, -1)
    seen = []
    monkeypatch.setattr(recorder._board, "add_scalar", lambda *args: seen.append(args))
    recorder.add({"step": 3, "split": "eval", "loss": 2.5, "accuracy": 0.5})
    recorder.close()
    assert seen == [("eval/loss", 2.5, 3), ("eval/accuracy", 0.5, 3)]
    assert list((tmp_path / "tensorboard").glob("events.*"))
