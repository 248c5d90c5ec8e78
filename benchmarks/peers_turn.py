"""One turn of benchmarks/peers.py: a process that does a job of one peer.

    python -m benchmarks.peers_turn JOB PEER THREADS WRITER EMBEDDER

The answer is JSON, on the last line: seconds of CPU and of the wall until the job was done once, of
later repetitions, and the peak of memory. A peer whose package is missing answers `missing`.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

PROMPT = 32
NEW = 64
VOCABULARY = 49000  # ids below it are tokens of SmolLM2
TEXTS = 400
REPEATS = 2
WORDS = "the quick brown fox jumps over a lazy dog and rests in green grass near the old river bank"


def texts() -> list[str]:
    """Draws texts of about 47 tokens."""
    rng = np.random.default_rng(0)
    sizes = [max(3, int(size)) for size in rng.gamma(4, 11, TEXTS)]
    return [" ".join(rng.choice(WORDS.split(), size)) for size in sizes]


def prompts(rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(3, VOCABULARY, (rows, PROMPT))


def ours(job: str, threads: int, writer: str, embedder: str) -> Callable[[], object]:
    """Prepares a job of this package."""
    import flaxformer_lite as f

    kind, rows, form = job.split()
    if kind == "load":
        return lambda: __import__("jax").block_until_ready(f.load_pretrained(writer)[1])
    if kind == "tokenize":
        tokenizer = f.load_tokenizer(writer)
        many = texts() * 25
        return lambda: [tokenizer.encode(text) for text in many]
    if kind == "embed":
        from pathlib import Path
        from types import SimpleNamespace

        from flaxformer_lite.inference.embed import embed
        from flaxformer_lite.model_details import load_sentence_layers
        from flaxformer_lite.pretrained.tokenizer import read_tokenizer

        model, params = f.load_pretrained(embedder)
        tokenizer = read_tokenizer(Path(embedder))
        opened = SimpleNamespace(model=model, params=params, cfg=model.cfg, tokenizer=tokenizer)
        layers = load_sentence_layers(Path(embedder))
        many = texts()
        return lambda: embed(opened, many, layers)
    overrides = {"quantize": "int8"} if form == "int8" else {}
    model, params = f.load_pretrained(writer, **overrides)
    ids = prompts(int(rows))
    return lambda: np.asarray(f.generate(model, params, ids, max_new_tokens=NEW))


def torch(job: str, threads: int, writer: str, embedder: str) -> Callable[[], object]:
    """Prepares a job of transformers and sentence-transformers, as their users do it."""
    import torch as library

    library.set_num_threads(threads)
    kind, rows, form = job.split()
    if kind == "embed":
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer(embedder, device="cpu")
        many = texts()
        return lambda: encoder.encode(many)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if kind == "tokenize":
        tokenizer = AutoTokenizer.from_pretrained(writer)
        many = texts() * 25
        return lambda: [tokenizer(text) for text in many]
    if form == "int8":
        raise ImportError("transformers has no int8 for a CPU without another package")

    def load():
        return AutoModelForCausalLM.from_pretrained(writer, dtype=library.float32)

    if kind == "load":
        return load
    model = load()
    ids = library.tensor(prompts(int(rows)))
    return lambda: model.generate(ids, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)


def ctranslate2(job: str, threads: int, writer: str, embedder: str) -> Callable[[], object]:
    """Prepares a job of CTranslate2; `WRITER.ctranslate2-FORM` is the converted model."""
    import ctranslate2 as library

    kind, rows, form = job.split()
    if kind not in ("load", "generate"):
        raise ImportError("CTranslate2 has no such job")
    folder = f"{writer}.ctranslate2-{form}"

    def load():
        return library.Generator(folder, device="cpu", intra_threads=threads, compute_type=form)

    if kind == "load":
        return load
    generator = load()
    with open(f"{folder}/vocabulary.json") as file:
        vocabulary = json.load(file)
    tokens = [[vocabulary[i] for i in row] for row in prompts(int(rows))]
    lengths = {"max_length": NEW, "min_length": NEW}
    return lambda: generator.generate_batch(tokens, include_prompt_in_result=False, **lengths)


PEERS = {"ours": ours, "torch": torch, "CTranslate2": ctranslate2}


def limits() -> dict[str, float]:
    """Measures the machine: FLOP/s of a product of matrices, and bytes/s of a copy."""
    import jax
    import jax.numpy as jnp

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
    return {"flops": 2 * size**3 / product, "bytes": 2 * source.nbytes / copy}


def main() -> None:
    job, peer, count, writer, embedder = sys.argv[1:]
    threads = int(count)
    # Before any library counts processors.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["OMP_NUM_THREADS"] = count
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if job == "limits":
        print(json.dumps(limits()))
        return
    try:
        work = PEERS[peer](job, threads, writer, embedder)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    work()
    whole = time.process_time()
    cpu = []
    wall = []
    for _ in range(REPEATS):
        cpu_began = time.process_time()
        wall_began = time.perf_counter()
        work()
        cpu.append(time.process_time() - cpu_began)
        wall.append(time.perf_counter() - wall_began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"whole": whole, "cpu": min(cpu), "wall": min(wall), "peak": peak}))


if __name__ == "__main__":
    main()
