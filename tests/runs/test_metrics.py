import json

from flaxformer_lite.runs.report.metrics import Recorder, read, sum_seconds


def test_recorder_rewinds_to_the_restored_step(tmp_path):
    recorder = Recorder(tmp_path, -1)
    for step in (10, 20, 30):
        recorder.add({"step": step, "split": "train", "loss": 1.0 / step})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 40, "spl')  # killed while writing
    again = Recorder(tmp_path, 20)
    again.add({"step": 25, "split": "eval", "loss": 0.5})
    assert [r["step"] for r in read(tmp_path / "metrics.jsonl")] == [10, 20, 25]
    assert again.of("eval") == [{"step": 25, "split": "eval", "loss": 0.5}]
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_seconds_of_earlier_starts_are_summed_and_those_of_repeated_steps_are_apart(tmp_path):
    recorder = Recorder(tmp_path, -1)
    for step in (10, 20, 30):
        recorder.add(
            {"step": step, "split": "train", "loss": 1.0, "seconds_steps": 2.0, "seconds_data": 0.5}
        )
    recorder.add({"step": 30, "split": "eval", "loss": 1.0})
    assert Recorder(tmp_path, 30, writes=False).dropped == []
    again = Recorder(tmp_path, 10)
    assert sum_seconds(again.history) == {"steps": 2.0, "data": 0.5}
    assert sum_seconds(again.dropped).total() == 5.0


def test_damaged_lines_are_dropped_with_a_notice_and_a_cut_one_without(tmp_path):
    lines = [
        b'{"step": 1, "split": "train", "loss": 2.0}',
        b'{"step": 2, "split": "tr\xffin"}',
        b"[" * 5000,
        b'{"step": "3"}',
        b'{"step": 3, "split": "train", "loss": "low"}',
        b'{"step": 4, "split": "eval"}',
        b'{"step": 5, "sp',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    recorder = Recorder(tmp_path, 9)
    for kept in (recorder.history, read(tmp_path / "metrics.jsonl")):
        assert [record["step"] for record in kept] == [1, 4]
    assert "line 2, 3, 4, 5; dropped" in recorder.notices[0] and Recorder(tmp_path, 9).notices == []
