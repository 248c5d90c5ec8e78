"""A peer's side of the conversation: one process that does one case's work whenever it is told to, and says how long it took.

    PYTHON -m benchmarks.PEER CASE       # a Case as JSON; without one it says its versions

Every line of its input is a request, `work`, `matmul` or `forget` (the memory's peak); every line of its output an answer
in JSON.
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

MATMUL = 2048  # rows and columns of the square product that tells the machine's peak


def serve(
    peers: dict[str, Callable[[Case], Callable[[], dict]]], matmul: Callable[[], Any], packages: list[str]
) -> None:
    """Answers requests until the input ends.

    Args:
      peers: by kind of case, a function that builds it and returns its work, which returns something to show for it.
      matmul: multiplies two matrices of MATMUL x MATMUL, float32, and waits for the result.
      packages: whose versions matter.
    """
    if len(sys.argv) == 1:
        print(json.dumps({"python": platform.python_version()} | {name: metadata.version(name) for name in packages}))
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    case = Case(**json.loads(sys.argv[1]))
    work = peers[case.kind](case)

    def product() -> dict:
        seconds = fastest(matmul)
        memory.trim()
        return {"seconds": seconds}

    todo = {"work": work, "matmul": product, "forget": memory.forget}
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        value = todo[line.strip()]()
        answer = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu, "value": value}
        print(json.dumps(answer | {"peak_bytes": memory.peak()}), file=answers, flush=True)


def fastest(function: Callable[[], Any], times: int = 3) -> float:
    """Seconds of the fastest of a few calls: a peak is what nothing disturbed."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return min(taken)
