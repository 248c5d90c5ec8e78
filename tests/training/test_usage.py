"""What a run has used of time and memory, in words."""

import types

import pytest

from flaxformer_lite.training.report.metrics import Recorder
from flaxformer_lite.training.report.usage import memory, peak, seconds, usage
from tests.training.test_run_page import record


def test_the_time_in_steps_is_that_of_the_records(tmp_path):
    recorder = Recorder(tmp_path, -1, writes=False)
    record(recorder, 40)
    assert seconds(recorder.history) == pytest.approx((15.0, 1.5))  # the first ten waited for the compiler
    assert seconds([]) == (0.0, 0.0)


def test_the_memory_of_devices_is_named_where_they_tell(monkeypatch):
    assert "memory of a device" not in dict(usage([])) and peak()[1].endswith("B of the process at most")
    assert memory().keys() == {"peak_process_bytes"} and memory()["peak_process_bytes"] > 50_000_000
    devices = [
        types.SimpleNamespace(memory_stats=lambda used=used: {"peak_bytes_in_use": used}) for used in (10**9, 2 * 10**9)
    ]
    monkeypatch.setattr("jax.local_devices", lambda: devices)
    rows = dict(usage([{"step": 1, "split": "train", "loss": 1.0, "mfu": 0.5}]))
    assert (
        rows["memory of a device"] == "2 GB at most"
        and rows["share of the peak"] == "50.0% in the median, 50.0% at best"
    )
    assert memory()["peak_device_bytes"] == 2 * 10**9 and peak() == ("memory", "2 GB of a device at most")
