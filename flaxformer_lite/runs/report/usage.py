"""Describes the speed of a run and the memory that it has used."""

import resource
import statistics
import sys

import jax

from flaxformer_lite.runs.report.metrics import Record
from flaxformer_lite.runs.report.sharding_report import format_bytes

# by the name in metrics.jsonl
LABELS = {
    "peak_process_bytes": "the process",
    "peak_device_bytes": "a device",
}
KIB = 1024 if sys.platform == "linux" else 1  # bytes in the unit of ru_maxrss


def usage_rows(history: list[Record]) -> list[tuple[str, str]]:
    """Returns rows about the speed of all recorded steps, and the memory in use."""
    rows = []
    for name, label, form in (
        ("tokens_per_second", "tokens a second", ",.0f"),
        ("mfu", "share of the peak", ".1%"),
    ):
        values = [record[name] for record in history if name in record]
        if values:
            median = statistics.median(values)
            rows.append((label, f"{median:{form}} in the median, {max(values):{form}} at best"))
    for name, most in memory().items():
        rows.append((f"memory of {LABELS[name]}", f"{format_bytes(most)} at most"))
    return rows


def peak() -> tuple[str, str]:
    """Returns the summary's row about peak memory.

    It is a device's, or the process's if the backend does not count it.
    """
    name, most = list(memory().items())[-1]
    return "memory", f"{format_bytes(most)} of {LABELS[name]} at most"


def memory() -> dict[str, int]:
    """Returns the peak bytes of this process and, if the backend counts them, of a device."""
    peaks = {"peak_process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB}
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    most = max(counts.get("peak_bytes_in_use", 0) for counts in stats)
    if most:
        peaks["peak_device_bytes"] = most
    return peaks
