"""A peer's side of the conversation: one process that does one case's work whenever it is told to, and says how long it took.

    PYTHON benchmarks/PEER.py CASE

Every line of its input is a request, `work` or `matmul`; every line of its output an answer in JSON.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from cases import CASES, Case

MATMUL = 2048  # rows and columns of the square product that tells the machine's peak


def serve(peers: dict[str, Callable[[Case], Callable[[], Any]]], matmul: Callable[[], Any], **facts: Any) -> None:
    """Answers requests until the input ends.

    Args:
      peers: by kind of case, a function that builds it and returns its work, which returns something to show for it.
      matmul: multiplies two matrices of MATMUL x MATMUL, float32, and waits for the result.
      **facts: versions and the like, for the first answer.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    case = CASES[sys.argv[1]]
    work = peers[case.kind](case)
    todo = {"work": work, "matmul": lambda: fastest(matmul)}
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        value = todo[line.strip()]()
        answer = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu, "value": value, **facts}
        answer["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(answer), file=answers, flush=True)
        facts = {}


def fastest(function: Callable[[], Any], times: int = 5) -> float:
    """Seconds of the fastest of a few calls: a peak is what nothing disturbed."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return min(taken)
