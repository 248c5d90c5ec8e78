"""The speed and memory of a run, in words."""

import types

from flaxformer_lite.runs.report.usage import memory, peak, usage_rows


def test_the_memory_of_devices_is_named_where_they_tell(monkeypatch):
    assert "memory of a device" not in dict(usage_rows([]))
    assert peak()[1].endswith("B of the process at most")
    assert memory().keys() == {"peak_process_bytes"} and memory()["peak_process_bytes"] > 50_000_000
    used = [lambda: {"peak_bytes_in_use": 10**9}, lambda: {"peak_bytes_in_use": 2 * 10**9}]
    devices = [types.SimpleNamespace(memory_stats=stats) for stats in used]
    monkeypatch.setattr("jax.local_devices", lambda: devices)
    rows = dict(usage_rows([{"step": 1, "split": "train", "loss": 1.0, "mfu": 0.5}]))
    assert rows["memory of a device"] == "2 GB at most"
    assert rows["share of the peak"] == "50.0% in the median, 50.0% at best"
    assert memory()["peak_device_bytes"] == 2 * 10**9
    assert peak() == ("memory", "2 GB of a device at most")
