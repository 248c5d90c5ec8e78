"""Greedy generation beside torch transformers: the same weights and prompts, two processes, rounds in turn.

    python benchmarks/generation.py --torch path/to/python/with/torch

The other interpreter needs torch and transformers. It draws GPT-2 124M and T5 small at random, saves them, and this one loads
them. Each case is written once by both to warm up, then `--rounds` times by turns, so that whatever else the machine does
falls on both. Prints medians, the median of the rounds' ratios, and how many of the new tokens are the same.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PROMPT, NEW, THREADS = 16, 128, 2
CASES = ("gpt2:1", "gpt2:8", "t5:8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default=sys.executable, help="a python that has torch and transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="*", default=CASES, help="model:batch")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve(ours if options.side == "ours" else theirs, options.weights)
        return
    with tempfile.TemporaryDirectory() as weights:
        compare(options, weights)


def compare(options: argparse.Namespace, weights: str) -> None:
    """Asks both sides by turns; theirs first, as it makes the weights."""
    sides = {side: start(python, side, weights) for side, python in (("theirs", options.torch), ("ours", sys.executable))}
    print(f"greedy, prompts of {PROMPT}, {NEW} new tokens, float32, {THREADS} threads, {options.rounds} rounds by turns")
    print(f"{'':8s} {'torch s':>8s} {'ours s':>8s} {'ratio':>6s} {'lowest':>6s} {'highest':>7s}  same ids")
    for case in options.cases:
        written = {side: ask(process, case)[1] for side, process in sides.items()}
        same = np.mean(written["ours"] == written["theirs"])
        rounds = [{side: ask(process, case)[0] for side, process in sides.items()} for _ in range(options.rounds)]
        ratios = sorted(took["theirs"] / took["ours"] for took in rounds)
        medians = [statistics.median(took[side] for took in rounds) for side in ("theirs", "ours")]
        print(f"{case:8s} {medians[0]:8.2f} {medians[1]:8.2f} {statistics.median(ratios):6.2f} {ratios[0]:6.2f}"
              f" {ratios[-1]:7.2f}  {same:.0%}", flush=True)  # fmt: skip
    for process in sides.values():
        process.communicate()


def start(python: str, side: str, weights: str) -> subprocess.Popen:
    command = [python, __file__, "--side", side, "--weights", weights]
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def ask(process: subprocess.Popen, case: str) -> tuple[float, np.ndarray]:
    """Seconds, and the new ids [B, NEW]."""
    print(case, file=process.stdin, flush=True)
    seconds, *ids = process.stdout.readline().split()
    return float(seconds), np.array(ids, int).reshape(-1, NEW)


def serve(open_model, weights: Path) -> None:
    """Answers each `model:batch` with seconds and ids."""
    models = {}
    for line in sys.stdin:
        name, batch = line.split(":")
        if name not in models:
            models[name] = open_model(name, weights / name)
        prompts = np.random.default_rng(0).integers(5, 30_000, (int(batch), PROMPT))
        began = time.perf_counter()
        ids = models[name](prompts)
        seconds = time.perf_counter() - began
        print(seconds, *np.asarray(ids)[:, -NEW:].reshape(-1), flush=True)


def ours(name: str, weights: Path):
    """A function from prompts to ids."""
    from flaxformer_lite import generate, load_pretrained

    model, params = load_pretrained(weights)
    return lambda prompts: generate(model, params, prompts, max_new_tokens=NEW)


def theirs(name: str, weights: Path):
    """A function from prompts to ids; its weights are saved for the other side."""
    import torch
    import transformers

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    if name == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    else:
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(decoder_start_token_id=0))
    model.eval().save_pretrained(weights)
    model.generation_config.eos_token_id = None  # so that every row is as long
    settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def write(prompts: np.ndarray) -> np.ndarray:
        ids = torch.from_numpy(prompts)
        with torch.inference_mode():
            return model.generate(ids, attention_mask=torch.ones_like(ids), **settings).numpy()

    return write


if __name__ == "__main__":
    main()
