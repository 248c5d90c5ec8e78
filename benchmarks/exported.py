"""Exported files by onnxruntime beside the model by jax, in turns on one CPU.

Random weights of the sizes of MiniLM (encode) and SmolLM2-135M (a prompt, then single tokens):

    python -m benchmarks.exported
    python -m benchmarks.exported --model path/to/smollm2 --turns 3

The second takes a published decoder instead, and counts CPU seconds of 64 tokens after 32.

Needs the extra [export]. Each row is the median of `--turns` turns; a turn runs both once, so that
other jobs of the machine slow both.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from flaxformer_lite import generate, load_pretrained, load_tokenizer
from flaxformer_lite.contrib.export.cases import Case, Run, first_call, next_call, pad_texts
from flaxformer_lite.contrib.export.folder import open_files
from flaxformer_lite.contrib.export.onnx import write_onnx
from flaxformer_lite.contrib.export.programs import ExportProgram, programs_of
from flaxformer_lite.contrib.export.weights import WEIGHTS, stored_as
from flaxformer_lite.models import build_model

LENGTH = 128
STEPS = 16
PROMPT = (
    "The sun had set behind the hills, and the last boats were coming home to the harbour. On the"
    " quay an old woman waited with a lamp in her hand, as she did on every evening of the year."
)
MINILM = dict(
    family="bert",
    head="none",
    d_model=384,
    encoder_layers=6,
    num_heads=12,
    mlp_dim=1536,
)
SMOLLM2 = dict(
    family="llama",
    vocab_size=49152,
    d_model=576,
    decoder_layers=30,
    num_heads=9,
    num_kv_heads=3,
    mlp_dim=1536,
    tie_embeddings=True,
)


class Pair(NamedTuple):
    """The same work, by jax and by onnxruntime."""

    name: str
    ours: Callable[[], object]
    theirs: Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--model", type=Path, help="a published decoder")
    args = parser.parse_args()
    if args.model:
        published(args.model, args.turns)
        return
    print("| model | work | jax ms | onnxruntime ms |\n|---|---|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, pairs in (("MiniLM", encode), ("SmolLM2-135M", decode)):
            for weights in ("float32", "int8"):
                for pair in pairs(Path(folder, f"{name}_{weights}.onnx"), weights):
                    ours, theirs = timed(pair, args.turns)
                    row = f"| {name}, file in {weights} | {pair.name} | {ours:.1f} | {theirs:.1f} |"
                    print(row, flush=True)


def timed(pair: Pair, turns: int) -> tuple[float, float]:
    """Returns the medians of both in milliseconds, after one call of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for call, taken in zip((pair.ours, pair.theirs), times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(call())
            if turn:
                taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[0]), statistics.median(times[1])


def made(family: str, **sizes: object):
    """Builds a model with random weights."""
    model = build_model(family, "tiny", **sizes)
    ids = np.zeros((1, 2), np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), input_ids=ids)["params"]
    draw = np.random.default_rng(0)
    return model, jax.tree.map(lambda x: 0.02 * draw.standard_normal(x.shape, np.float32), shapes)


def written(path: Path, model, params, weights: str) -> tuple[ExportProgram, Callable]:
    (program,) = programs_of(model)
    write_onnx(path, program, stored_as(weights, params))
    print(f"{path.name}: {path.stat().st_size / 1e6:,.0f} MB", flush=True)
    return program, open_files({program.name: path})


def published(folder: Path, turns: int) -> None:
    """Prints sizes, and CPU seconds of greedy tokens, for each number format of the weights."""
    model, params = load_pretrained(folder)
    (program,) = programs_of(model)
    row = load_tokenizer(folder).encode(PROMPT)[:32]
    print("| weights | MB | jax, CPU s | onnxruntime, CPU s | ratio | equal tokens |")
    print("|---|--:|--:|--:|--:|--:|")
    for weights in WEIGHTS:
        with tempfile.TemporaryDirectory() as made:
            path = Path(made, "model.onnx")
            write_onnx(path, program, stored_as(weights, params))
            size = path.stat().st_size / 1e6
            run = open_files({program.name: path})
        seconds = np.zeros((turns + 1, 2))
        for turn in range(turns + 1):  # the first compiles
            start = time.process_time()
            ids = generate(model, params, [row], max_new_tokens=64, eos_token_id=None)
            seconds[turn, 0] = time.process_time() - start
            start = time.process_time()
            written = greedy_tokens(program, run, row, 64)
            seconds[turn, 1] = time.process_time() - start
        ours, theirs = np.median(seconds[1:], axis=0)
        same = int((np.asarray(ids)[0, -64:] == written).sum())
        numbers = f"{ours:.1f} | {theirs:.1f} | {theirs / ours:.2f} | {same} of 64"
        print(f"| {weights} | {size:,.0f} | {numbers} |", flush=True)


def greedy_tokens(program: ExportProgram, run: Run, row: list[int], count: int) -> list[int]:
    inputs = first_call(program, [row], None, 0)
    written = []
    for _ in range(count):
        case = Case("decode", inputs, run("decode", inputs))
        inputs = next_call(program, case)
        written.append(int(inputs["input_ids"][0, 0]))
    return written


def encode(path: Path, weights: str) -> Iterator[Pair]:
    model, params = made(**MINILM)
    program, run = written(path, model, params, weights)
    encoded = jax.jit(lambda params, inputs: model.apply({"params": params}, **inputs))
    draw = np.random.default_rng(1)
    for batch in (1, 16):
        rows = draw.integers(1, 30000, (batch, LENGTH)).tolist()
        inputs = pad_texts(program, rows)
        yield Pair(
            f"encode, {batch} x {LENGTH} tokens",
            lambda inputs=inputs: encoded(params, inputs).last_hidden_state,
            lambda inputs=inputs: run("encode", inputs),
        )


def decode(path: Path, weights: str) -> Iterator[Pair]:
    model, params = made(**SMOLLM2)
    program, run = written(path, model, params, weights)
    row = np.random.default_rng(1).integers(1, 49000, LENGTH).tolist()

    for count in (1, 1 + STEPS):
        yield Pair(
            f"{LENGTH} tokens, then {count} of its own",
            lambda count=count: generate(
                model, params, [row], max_new_tokens=count, eos_token_id=None
            ),
            lambda count=count: greedy_tokens(program, run, row, count),
        )


if __name__ == "__main__":
    main()
