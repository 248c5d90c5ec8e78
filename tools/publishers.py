"""Kills save_pretrained and convert with kill -9 at random instants, and runs two at once: a
directory is never in between.

    python tools/publishers.py --kills=100 --pairs=20 --folder=/tmp/publishers

After each kill the directory must hold the old model or the new one, whole; or, where there was
none, one or nothing. The processes are forks of one that has traced the models, so that a kill
costs a tenth of a second.
"""

import argparse
import collections
import contextlib
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flax.traverse_util import unflatten_dict

from flaxformer_lite import build_model, save_pretrained
from flaxformer_lite.cli.convert import convert
from flaxformer_lite.cli.inspect import checksum
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.pretrained.folder import open_weights, read_config

SHARD = 1_000_000  # bytes, of several files a model
LONGEST = 0.3  # seconds until a kill


def model_and_params(layers: int) -> tuple:
    model = build_model("gpt2", "tiny", vocab_size=512, decoder_layers=layers, max_length=128)
    draw = np.random.default_rng(layers)
    shapes = parameter_shapes(model)
    return model, unflatten_dict(
        {k: draw.normal(size=v.shape).astype("f4") for k, v in shapes.items()}, sep="/"
    )


def fork(work: Callable[[], None]) -> int:
    """Runs `work` in a process of its own, which ends with 0, or with 1 where `work` raises a
    ValueError."""
    if child := os.fork():
        return child
    code = 2
    try:
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            work()
        code = 0
    except ValueError as error:
        code = 1
        print(f"    {error}", file=sys.stderr)
    finally:
        os._exit(code)


def content(folder: Path) -> str:
    """Returns what a directory holds: a digest of its weights and its depth, or "nothing"."""
    if not folder.exists():
        return "nothing"
    return f"{checksum(open_weights(folder))[:12]} of {read_config(folder)['n_layer']}"


def killed(work: Callable[[], None]) -> None:
    child = fork(work)
    time.sleep(random.uniform(0, LONGEST))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def run(folder: Path, kills: int, pairs: int) -> collections.Counter:
    """Prints and returns how often each outcome was seen; raises AssertionError at one that must
    not be."""
    warnings.filterwarnings("ignore", "os.fork")  # the forks use no JAX
    models = [model_and_params(layers) for layers in (2, 3)]
    seen = collections.Counter()
    sources = [folder / "a", folder / "b"]
    for source, (model, params) in zip(sources, models, strict=True):
        save_pretrained(source, model, params, shard_bytes=SHARD)
    whole = [content(source) for source in sources]

    def save(which: int, at: Path) -> None:
        save_pretrained(at, *models[which], shard_bytes=SHARD)

    def save_for_ever() -> None:
        while True:
            save(0, folder / "saved")
            save(1, folder / "saved")

    def convert_to(which: int, at: Path) -> None:
        convert(str(sources[which]), str(at), dtype=None, head=None)

    save(0, folder / "saved")
    for number in range(kills):
        killed(save_for_ever)
        found = content(folder / "saved")
        assert found in whole, found
        seen["saved: old or new"] += 1
        killed(lambda at=folder / f"converted{number}": convert_to(0, at))
        found = content(folder / f"converted{number}")
        assert found in (whole[0], "nothing"), found
        seen[f"converted: {'whole' if found in whole else found}"] += 1
    for number in range(pairs):
        for kind, write in (("save", save), ("convert", convert_to)):
            at = folder / f"{kind}{number}"
            children = [
                fork(lambda which=which, at=at, write=write: write(which, at)) for which in (0, 1)
            ]
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            assert set(codes) <= {0, 1} and 0 in codes, codes
            winners = [what for what, code in zip(whole, codes, strict=True) if not code]
            assert content(at) in winners, (content(at), winners)
            assert kind == "save" or len(winners) == 1
            seen[f"two at once, {kind}: {len(winners)} wrote"] += 1
    save(0, folder / "saved")
    left = [path.name for path in folder.glob(".saved.*")]
    assert not left, left
    for outcome, times in sorted(seen.items()):
        print(f"{times:5} {outcome}")
    return seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    run(options.folder, options.kills, options.pairs)
