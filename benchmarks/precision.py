"""Measures what products and weights of few bits cost, in nats (docs/precision.md).

    python -m benchmarks.precision train --out=/tmp/precision      # the demo, three seeds
    python -m benchmarks.precision weights --model path/to/smollm2 --text book.txt

`train` runs configs/demo.py with each value of `model.matmul`, and keeps its runs in --out: a
command that was stopped continues. `weights` computes the loss of held text with the matrices of
the layers, or the cache, held in few bits.
"""

import argparse
import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flaxformer_lite import init_cache, load_pretrained, load_tokenizer, pages
from flaxformer_lite.config import ExperimentConfig, choices, from_config_dict
from flaxformer_lite.runs import loop

# how matrices and the cache are held
WAYS = (
    ("none", "float"),
    ("int8", "float"),
    ("int4", "float"),
    ("nf4", "float"),
    ("none", "int8"),
    ("int8", "int8"),
    ("int4", "int8"),
)


def demo(matmul: str, seed: int, steps: int, batch_size: int) -> ExperimentConfig:
    """Returns the demo with these products, evaluated once, at its end."""
    cfg = from_config_dict(ExperimentConfig, pages.get_config("demo"))
    train = dataclasses.replace(
        cfg.train,
        steps=steps,
        batch_size=batch_size,
        log_every=50,
        eval_every=steps,
        eval_batches=40,
        checkpoint_every=steps,
        sample_tokens=0,
    )
    model = dataclasses.replace(cfg.model, matmul=matmul)
    return dataclasses.replace(cfg, model=model, train=train, seed=seed)


def held_out_loss(workdir: Path) -> float:
    """Returns the last held-out loss of a run."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    losses = [record["eval/loss"] for record in map(json.loads, lines) if "eval/loss" in record]
    return losses[-1]


def train(args: argparse.Namespace) -> None:
    """Prints the held-out loss of each run, and its distance from float's of the same seed."""
    print("| `model.matmul` | " + " | ".join(f"seed {seed}" for seed in args.seeds) + " | mean |")
    print("|---|" + "---|" * (len(args.seeds) + 1))
    exact = np.zeros(len(args.seeds))
    for matmul in args.matmul:
        losses = []
        for seed in args.seeds:
            workdir = args.out / f"{matmul}_{seed}"
            loop.run(demo(matmul, seed, args.steps, args.batch_size), workdir)
            losses.append(held_out_loss(workdir))
        if matmul == "float":
            exact = np.array(losses)
        shown = [f"{loss:.4f}" for loss in (*losses, np.mean(losses))]
        distance = f" ({np.mean(losses) / exact.mean() - 1:+.2%})" if matmul != "float" else ""
        print(f"| {matmul} | {' | '.join(shown)}{distance} |", flush=True)


def weights(args: argparse.Namespace) -> None:
    """Prints the loss of a text, and what is held, for each way to hold matrices and cache."""
    tokenizer = load_tokenizer(args.model)
    ids = tokenizer.encode(args.text.read_text(), allow_special=False)
    count = args.rows * args.length
    if len(ids) < count:
        raise SystemExit(f"--text: has {len(ids)} tokens; give {count}.")
    ids_BT = np.array(ids[:count]).reshape(args.rows, args.length)
    print("| matrices of layers | cache | nats a token | more | weights | cache |")
    print("|---|---|---|---|---|---|")
    exact = None
    for form, cache in WAYS:
        options = {} if form == "none" else {"quantize": form}
        model, params = load_pretrained(args.model, cache=cache, **options)
        loss = loss_by_cache(model, params, ids_BT)
        exact = exact or loss
        slots = jax.eval_shape(lambda cfg=model.cfg: init_cache(cfg, *ids_BT.shape))
        sizes = [_megabytes(params), _megabytes(slots)]
        more = f"{loss - exact:+.4f}" if loss != exact else ""
        print(f"| {form} | {cache} | {loss:.4f} | {more} | {sizes[0]} | {sizes[1]} |", flush=True)


def loss_by_cache(model: Any, params: Any, ids_BT: np.ndarray) -> float:
    """Computes the loss of each row's second half, read in pieces through the cache."""
    start = ids_BT.shape[1] // 2
    piece = 16

    @functools.partial(jax.jit, static_argnames=("first",))
    def read(params: Any, ids: jax.Array, cache: Any, index: jax.Array, first: bool) -> Any:
        slot = 0 if first else index
        output = model.apply({"params": params}, ids, cache=cache, cache_index=slot)
        return jax.nn.log_softmax(output.logits), output.cache

    cache = init_cache(model.cfg, *ids_BT.shape)
    _, cache = read(params, ids_BT[:, :start], cache, 0, True)
    losses = []
    for index in range(start, ids_BT.shape[1], piece):
        logprobs, cache = read(params, ids_BT[:, index : index + piece], cache, index, False)
        targets = ids_BT[:, index + 1 : index + piece + 1]
        chosen = np.take_along_axis(
            np.asarray(logprobs)[:, : targets.shape[1]], targets[:, :, None], axis=2
        )
        losses.append(-chosen)
    return float(np.concatenate(losses, axis=1).mean())


def _megabytes(tree: Any) -> str:
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
    return f"{size / 1e6:,.1f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("train")
    training.add_argument("--out", type=Path, default=Path("runs/precision"))
    training.add_argument("--steps", type=int, default=300)
    training.add_argument("--batch_size", type=int, default=16)
    training.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    training.add_argument("--matmul", nargs="+", default=choices.MATMULS)
    training.set_defaults(run=train)
    held = commands.add_parser("weights")
    held.add_argument("--model", required=True)
    held.add_argument("--text", type=Path, required=True)
    held.add_argument("--rows", type=int, default=8)
    held.add_argument("--length", type=int, default=512)
    held.set_defaults(run=weights)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
