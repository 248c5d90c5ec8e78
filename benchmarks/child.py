"""A peer's process: does the work of one case on request, and reports how long it took.

    PYTHON -m benchmarks.PEER CASE       # a Case as JSON; without one it says its versions

Every line of input is a request, `work`, `matmul` or `forget` (the peak of memory); every line of
output is an answer in JSON.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from benchmarks import memory
from benchmarks.cases import Case

MATMUL = 2048  # rows and columns of the matrix product that measures the machine's peak


def serve(
    peers: dict[str, Callable[[Case], Callable[[], dict]]],
    matmul: Callable[[], Any],
    packages: list[str],
) -> None:
    """Answers requests until the input ends.

    Args:
      peers: kind of case -> function that builds the case and returns its work, a function that
        returns its results.
      matmul: multiplies two matrices of MATMUL x MATMUL, float32, and waits for the result.
      packages: packages to report the versions of.
    """
    if len(sys.argv) == 1:
        print(
            json.dumps(
                {"python": platform.python_version()}
                | {name: metadata.version(name) for name in packages}
            )
        )
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep the output of libraries out of the answers
    case = Case(**json.loads(sys.argv[1]))
    work = peers[case.kind](case)

    def product() -> dict:
        seconds = fastest(matmul)
        memory.trim()
        return {"seconds": seconds}

    todo = {"work": work, "matmul": product, "forget": memory.forget}
    for line in sys.stdin:
        wall = time.perf_counter()
        cpu = time.process_time()
        value = todo[line.strip()]()
        answer = {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "value": value,
        }
        print(json.dumps(answer | {"peak_bytes": memory.peak()}), file=answers, flush=True)


def fastest(function: Callable[[], Any], times: int = 3) -> float:
    """Returns the seconds of the fastest of a few calls, as a peak is undisturbed."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return min(taken)
