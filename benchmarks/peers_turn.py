"""One turn of benchmarks/peers.py: a process that does a job of one peer.

    python -m benchmarks.peers_turn JOB PEER THREADS WRITER EMBEDDER CLASSIFIER

The answer is JSON, on the last line: seconds of CPU and of the wall until the job was done once,
with its child processes, and of later repetitions; and the peak of memory. A peer that cannot do it
answers `missing`. JOB may be `prepare`, to convert weights, or `limits`, to measure the machine.
"""

import contextlib
import importlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from types import ModuleType

from benchmarks.peer_jobs import TEXTS, Case, Job, Work, draw_texts

REPEATS = 2
ONCE = ("classify", "lora")  # jobs that are a whole process
# modules of benchmarks/peer_jobs, and their tables of jobs
PEERS = {
    "ours": ("ours", "JOBS"),
    "transformers": ("transformers", "JOBS"),
    "transformers static": ("transformers", "STATIC"),
    "sentence-transformers": ("sentence_transformers", "JOBS"),
    "sentence-transformers onnx": ("sentence_transformers", "ONNX"),
    "peft": ("peft", "JOBS"),
    "CTranslate2": ("ctranslate2", "JOBS"),
    "llama.cpp": ("llama_cpp", "JOBS"),
}


def module_of(peer: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.peer_jobs.{PEERS[peer][0]}")


def jobs_of(peer: str) -> dict[str, Job]:
    return getattr(module_of(peer), PEERS[peer][1])


def case_of(job: str, threads: int, *folders: str) -> Case:
    """Reads `KIND ROWS FORM`."""
    _, rows, form = job.split()
    return Case(int(rows), form, threads, *folders)


def measure_limits(embedder: str) -> dict[str, float]:
    """Measures FLOP/s of a product of matrices, and bytes/s of a copy; counts tokens of texts."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from flaxformer_lite import load_tokenizer

    size = 2048
    x = jnp.ones((size, size))
    multiply = jax.jit(jnp.matmul)
    jax.block_until_ready(multiply(x, x))
    source = np.ones(2**26)
    target = np.ones_like(source)

    def best(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(7):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    product = best(lambda: jax.block_until_ready(multiply(x, x)))
    copy = best(lambda: np.copyto(target, source))
    tokenizer = load_tokenizer(embedder)
    tokens = sum(len(tokenizer.encode(text)) + 2 for text in draw_texts(TEXTS))
    return {
        "flops": 2 * size**3 / product,
        "bytes": 2 * source.nbytes / copy,
        "tokens_a_text": tokens / TEXTS,
    }


def cpu_seconds() -> float:
    """Returns those of this process and of its children that have ended."""
    return sum(os.times()[:4])


def measure(work: Work, began: float, repeats: int) -> dict[str, float]:
    """Does a job once, and then again; `began` is the time of the clock at the process's start."""
    work()
    found = {"whole": cpu_seconds(), "whole_wall": time.time() - began}
    cpu = []
    wall = []
    for _ in range(repeats):
        cpu_began = cpu_seconds()
        wall_began = time.perf_counter()
        work()
        cpu.append(cpu_seconds() - cpu_began)
        wall.append(time.perf_counter() - wall_began)
    if repeats:
        found |= {"cpu": min(cpu), "wall": min(wall)}
    peaks = []
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        peaks.append(resource.getrusage(who).ru_maxrss * 1024)
    return {**found, "peak": max(peaks)}


def main() -> None:
    began = time.time()
    job, peer, count, *folders = sys.argv[1:]
    # Before any library counts processors.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(count)])
    os.environ["OMP_NUM_THREADS"] = count
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if job == "limits":
        print(json.dumps(measure_limits(folders[1])))
        return
    case = case_of(job, int(count), *folders)
    kind = job.split()[0]
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            # Runs and tables go when the turn ends.
            tempfile.tempdir = stack.enter_context(tempfile.TemporaryDirectory())
            if kind == "prepare":
                module_of(peer).convert(case)
                found = {}
            else:
                repeats = REPEATS
                if kind in ONCE:
                    repeats = 0
                found = measure(jobs_of(peer)[kind](case), began, repeats)
    except ImportError as error:
        found = {"missing": str(error).splitlines()[0]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
