"""Storage of results: a JSON file, and the page and plot made from it after every measurement."""

import contextlib
import datetime
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import plot, table

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"


def keep(folder: Path, part: str, name: str, result: dict) -> None:
    """Adds one result to those stored, dropping those of another machine.

    Args:
      folder: folder of cpu.json, cpu.txt and cpu.png.
      part: cases or start.
      name: name of the case or question.
      result: numbers, as JSON.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cpu.json"
    results = {"machine": machine(), "cases": {}, "start": {}}
    if file.exists() and (known := json.loads(file.read_text()))["machine"] == results["machine"]:
        results = known
    results[part][name] = result
    file.write_text(json.dumps(results, indent=1) + "\n")
    (folder / "cpu.txt").write_text(table.page(results))
    plot.draw(results, folder / "cpu.png")


@contextlib.contextmanager
def stamped(command: str) -> Iterator[dict[str, Any]]:
    """Yields a record with time, command and load of a measurement, to be filled with the
    results."""
    result = {
        "date": datetime.date.today().isoformat(),
        "command": command,
        "load": [os.getloadavg()[0]],
    }
    yield result
    result["load"].append(os.getloadavg()[0])


def machine() -> dict[str, str]:
    cpus = Path("/proc/cpuinfo").read_text()
    memory = Path("/proc/meminfo").read_text()
    gib = int(re.search(r"MemTotal:\s+(\d+)", memory)[1]) / 2**20
    model = re.search(r"model name\s*: (.*)", cpus)
    flags = next((line for line in cpus.splitlines() if line.startswith("flags")), "").split()
    return {
        "processor": model[1] if model else platform.processor(),
        "vectors": next((name for name in ("avx512f", "avx2") if name in flags), ""),
        "cores": str(os.cpu_count()),
        "memory": f"{gib:.0f} GiB",
    }
