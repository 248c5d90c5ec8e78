"""Measures speculative decoding on the continuation of code (docs/benchmarks/README.md).

    python -m benchmarks.speculative student --model path/to/smollm2 --out runs/two_layers
    flaxformer_lite train ... --config.train.init_from=runs/two_layers --workdir=runs/student
    python -m benchmarks.speculative time --model path/to/smollm2 --draft runs/student

`student` keeps the first and the last layer of a model, which a short training then joins. `time`
continues files of Python's standard library, plain, by lookup and with the draft in turn, and
prints tokens per second of CPU time (of all threads, so that other programs matter little).
"""

import argparse
import dataclasses
import shutil
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite import generate, load_pretrained, load_tokenizer, registry, save_pretrained

# They must not be in the text that a draft is trained on.
FILES = ("ast.py", "calendar.py", "csv.py", "gzip.py", "heapq.py", "shelve.py", "textwrap.py")


class Way(NamedTuple):
    """A way to write, and what it has taken."""

    name: str
    options: dict[str, Any]
    guessed: int
    seconds: list[float]
    reads: list[int]
    differ: list[int]


def student(args: argparse.Namespace) -> None:
    """Writes a model of the first and the last layer of another."""
    model, params = load_pretrained(args.model)
    cfg = dataclasses.replace(model.cfg, decoder_layers=2)
    layers = dict(params["decoder"])
    last = layers.pop(f"layer_{model.cfg.decoder_layers - 1}")
    for number in range(1, model.cfg.decoder_layers - 1):
        layers.pop(f"layer_{number}")
    small = registry.resolve("models", cfg.family).Model(cfg)
    save_pretrained(args.out, small, {**params, "decoder": {**layers, "layer_1": last}})
    for file in Path(args.model).glob("*token*.json"):
        shutil.copy(file, args.out)


def prompts(tokenizer: Any, length: int) -> Iterator[list[int]]:
    """Yields the beginning of the second half of each file."""
    library = Path(sysconfig.get_path("stdlib"))
    for name in FILES:
        text = (library / name).read_text()
        start = text.index("\n", len(text) // 2) + 1
        yield tokenizer.encode(text[start:])[:length]


def measure(args: argparse.Namespace) -> None:
    """Prints one line for each way of writing."""
    model, params = load_pretrained(args.model)
    tokenizer = load_tokenizer(args.model)
    ways = [Way("plain", {}, 0, [], [], [])]
    for tokens in args.tokens:
        options = {"prompt_lookup_num_tokens": tokens}
        ways.append(Way(f"lookup {tokens}", options, tokens, [], [], []))
        if args.draft:
            options = {"draft": load_pretrained(args.draft), "num_assistant_tokens": tokens}
            ways.append(Way(f"draft {tokens}", options, tokens, [], [], []))
    settings = {
        "max_new_tokens": args.new,
        "return_scores": True,
        "temperature": args.temperature,
        "seed": 1,
    }
    files = list(prompts(tokenizer, args.length))[: args.files]
    for number, prompt in enumerate([None, *files]):
        plain = np.zeros(0)
        for way in ways:
            started = time.process_time()
            ids = prompt or [1] * args.length  # the first round compiles
            found = generate(model, params, [ids], **settings, **way.options)
            if not number:
                continue
            way.seconds.append(time.process_time() - started)
            way.reads.append(args.new - 1 if found.reads is None else int(found.reads[0]))
            plain = plain if way.guessed else found.sequences
            way.differ.append(int((plain != found.sequences).any()))
        if number:
            print(f"\n{number} of {len(files)} files", flush=True)
            show(ways, args.new)


def show(ways: list[Way], new: int) -> None:
    """Prints a table of all files so far."""
    print("| way | tokens per CPU second | tokens a read | accepted | other texts |")
    print("|---|---:|---:|---:|---:|")
    for way in ways:
        written = len(way.reads) * (new - 1)
        reads = sum(way.reads)
        rate = len(way.seconds) * new / sum(way.seconds)
        accepted = f"{(written - reads) / (reads * way.guessed):.0%}" if way.guessed else ""
        print(
            f"| {way.name} | {rate:.1f} | {written / reads:.2f} | {accepted} | {sum(way.differ)} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser("student")
    made.add_argument("--model", required=True)
    made.add_argument("--out", required=True)
    made.set_defaults(run=student)
    timed = commands.add_parser("time")
    timed.add_argument("--model", required=True)
    timed.add_argument("--draft")
    timed.add_argument("--tokens", type=int, nargs="+", default=[4])
    timed.add_argument("--length", type=int, default=256)
    timed.add_argument("--files", type=int, default=len(FILES))
    timed.add_argument("--new", type=int, default=64)
    timed.add_argument("--temperature", type=float, default=0.0)
    timed.set_defaults(run=measure)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
