"""The speed of a run and the memory that it has used, in words."""

import resource
import statistics
import sys

import jax

from flaxformer_lite.runs.report.metrics import Record
from flaxformer_lite.runs.report.sharding_report import size

# by the name in metrics.jsonl
LABELS = {
    "peak_process_bytes": "the process",
    "peak_device_bytes": "a device",
}
KIB = 1024 if sys.platform == "linux" else 1  # bytes in the unit of ru_maxrss


def usage(history: list[Record]) -> list[tuple[str, str]]:
    """Summarizes the speed of all recorded steps, and the memory of this process and its
    devices."""
    rows = []
    for name, label, form in (
        ("tokens_per_second", "tokens a second", ",.0f"),
        ("mfu", "share of the peak", ".1%"),
    ):
        if values := [record[name] for record in history if name in record]:
            rows.append(
                (
                    label,
                    (
                        f"{statistics.median(values):{form}} in the median, {max(values):{form}} at"
                        " best"
                    ),
                )
            )
    return [
        *rows,
        *(
            (f"memory of {LABELS[name]}", f"{size(most)} at most")
            for name, most in memory().items()
        ),
    ]


def peak() -> tuple[str, str]:
    """Returns a row for a summary: the most memory of a device, or where the backend does not count
    it, of the process."""
    name, most = list(memory().items())[-1]
    return "memory", f"{size(most)} of {LABELS[name]} at most"


def memory() -> dict[str, int]:
    """Returns the most bytes that were in use by this process and, where the backend counts them,
    on one of its devices."""
    found = {"peak_process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB}
    most = max(
        (device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices()
    )
    return found | ({"peak_device_bytes": most} if most else {})
