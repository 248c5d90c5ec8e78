"""Measures what products and weights of few bits cost, in nats (docs/precision.md).

    python -m benchmarks.precision train --out=/tmp/precision      # the demo, three seeds
    python -m benchmarks.precision weights --model path/to/smollm2 --text book.txt
    python -m benchmarks.precision families --out=/tmp/families    # small models, trained here

`train` runs configs/demo.py with each value of `model.matmul`, and keeps its runs in --out: a
command that was stopped continues. `weights` computes the loss of held text with the matrices of
the layers, or the cache, held in few bits, and `families` that of the held-out rows of runs.
"""

import argparse
import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import flaxformer_lite
from flaxformer_lite import init_cache, load_pretrained, load_tokenizer, pages
from flaxformer_lite.checkpoints.workdir import read_run
from flaxformer_lite.cli import command_line
from flaxformer_lite.config import ExperimentConfig, choices, from_config_dict
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.runs.start.adopt import read_experiment

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
FEW_WAYS = (("int8", "float"), ("int4", "float"), ("nf4", "float"), ("none", "int8"))
PIECE = 16  # tokens read at once
ROWS = 32  # held-out rows of each run
# Small models of bytes.
PAGES = {
    "gpt2_tiny": {},
    "llama_tiny": {},
    "t5_tiny": {"model.encoder_layers": 2, "data.corpus": "stdlib_code"},
    "moe_tiny": {"model.mlp_dim": 96},
}
SMALL = {
    "model.vocab_size": 0,
    "model.d_model": 64,
    "model.num_heads": 2,
    "model.mlp_dim": 192,
    "model.decoder_layers": 2,
    "model.dropout": 0.0,
    "data.tokenizer.name": "bytes",
    "data.length": 128,
    "optimizer.learning_rate": 1e-2,
    "train.batch_size": 16,
    "train.eval_every": 1000,
    "train.eval_batches": 2,
    "train.sample_tokens": 0,
}


def demo(matmul: str, seed: int, args: argparse.Namespace) -> ExperimentConfig:
    """Returns the demo with these products."""
    cfg = from_config_dict(ExperimentConfig, pages.get_config("demo"))
    train = dataclasses.replace(
        cfg.train,
        steps=args.steps,
        batch_size=args.batch_size,
        log_every=50,
        eval_every=100,
        eval_batches=20,
        checkpoint_every=100,
        sample_tokens=0,
    )
    model = dataclasses.replace(cfg.model, matmul=matmul)
    return dataclasses.replace(cfg, model=model, train=train, seed=seed)


def held_out_losses(workdir: Path) -> dict[int, float]:
    """Returns the held-out losses of a run by step."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {one["step"]: one["nll"] for one in records if one["split"] == "eval"}


def train(args: argparse.Namespace) -> None:
    """Trains each seed with each kind of product; prints the losses after each seed."""
    losses: dict[str, list[dict[int, float]]] = {matmul: [] for matmul in args.matmul}
    for seed in args.seeds:
        for matmul in args.matmul:
            workdir = args.out / f"{matmul}_{seed}"
            flaxformer_lite.run(demo(matmul, seed, args), workdir)
            losses[matmul].append(held_out_losses(workdir))
        print(training_table(losses), flush=True)


def training_table(losses: dict[str, list[dict[int, float]]]) -> str:
    """Returns the losses of all seeds by step, and the distance of their mean from float's."""
    lines = ["| step | `model.matmul` | mean | from `float` | by seed |", "|---|---|---|---|---|"]
    steps = [step for step in losses["float"][0] if step]
    for step in steps:
        exact = np.mean([run[step] for run in losses["float"]])
        for matmul, runs in losses.items():
            own = [run[step] for run in runs]
            each = ", ".join(f"{loss:.4f}" for loss in own)
            distance = "" if matmul == "float" else f"{np.mean(own) / exact - 1:+.2%}"
            lines.append(f"| {step} | `{matmul}` | {np.mean(own):.4f} | {distance} | {each} |")
    return "\n".join(lines)


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
    rows = of_text(ids_BT)
    for form, cache in WAYS:
        model, params = opened(args.model, form, cache)
        loss = loss_by_cache(model, params, rows)
        exact = exact or loss
        slots = jax.eval_shape(lambda cfg=model.cfg: init_cache(cfg, *ids_BT.shape))
        sizes = [_megabytes(params), _megabytes(slots)]
        more = f"{loss - exact:+.4f}" if loss != exact else ""
        print(f"| {form} | {cache} | {loss:.4f} | {more} | {sizes[0]} | {sizes[1]} |", flush=True)


class Rows(NamedTuple):
    """The inputs of a decoder and the tokens that it predicts.

    Attributes:
      ids_BT: the tokens it reads.
      labels_BT: the tokens it predicts.
      weights_BT: 1 for each label that counts.
      source: what the encoder reads, if there is one.
    """

    ids_BT: np.ndarray
    labels_BT: np.ndarray
    weights_BT: np.ndarray
    source: dict[str, np.ndarray]


def of_text(ids_BT: np.ndarray) -> Rows:
    """Returns rows whose labels are the next tokens."""
    weights_BT = np.ones_like(ids_BT)
    weights_BT[:, -1] = 0
    return Rows(ids_BT, np.roll(ids_BT, -1, axis=1), weights_BT, {})


def opened(path: str | Path, form: str, cache: str) -> tuple[Any, Any]:
    options = {} if form == "none" else {"quantize": form}
    return load_pretrained(path, cache=cache, **options)


def families(args: argparse.Namespace) -> None:
    """Trains a small model of each family, and prints what each way adds to its held-out loss."""
    names = [f"{form}, {cache} cache" for form, cache in FEW_WAYS]
    print("| page | held-out loss | " + " | ".join(names) + " |")
    print("|---|---|" + "---|" * len(names))
    for page in args.pages:
        changes = PAGES[page]
        workdir = args.out / page
        values = SMALL | changes | {"train.steps": args.steps}
        flags = [f"--config.{name}={value}" for name, value in values.items()]
        cfg = read_experiment(command_line.config([f"--config={page}", *flags]))
        flaxformer_lite.run(cfg, workdir)
        rows = held_out_rows(workdir)
        exact = loss_by_cache(*opened(workdir, "none", "float"), rows)
        cells = []
        for form, cache in FEW_WAYS:
            more = loss_by_cache(*opened(workdir, form, cache), rows) - exact
            cells.append(f"{more:+.4f}")
        print(f"| `{page}` | {exact:.4f} | {' | '.join(cells)} |", flush=True)


def held_out_rows(workdir: Path) -> Rows:
    """Reads the first held-out rows of a run."""
    cfg = read_run(workdir).cfg
    batch = next(iter(open_dataset(cfg, "eval").batches(batch_size=ROWS)))
    source = dict(batch["inputs"])
    decoder = source.pop("decoder_input_ids", None)
    if decoder is None:  # rows of several documents are read as one text
        return of_text(source["input_ids"])
    targets = batch["targets"]
    return Rows(decoder, targets["labels"], targets["weights"], source)


def loss_by_cache(model: Any, params: Any, rows: Rows) -> float:
    """Computes the loss of each row's second half, read in pieces through the cache."""
    length = rows.ids_BT.shape[1]
    start = length // 2
    encoded: dict[str, Any] = {}
    if rows.source:
        source = dict(rows.source)
        if "decoder_segment_ids" in source:  # of the documents that share a row
            encoded["decoder_segment_ids"] = source.pop("decoder_segment_ids")
        encoded["encoder_output"] = model.apply({"params": params}, **source, method="encode")
        for name in ("attention_mask", "segment_ids"):
            if name in source:
                encoded[name] = source[name]

    @functools.partial(jax.jit, static_argnames=("first",))
    def read(
        params: Any, encoded: Any, ids: jax.Array, cache: Any, index: jax.Array, first: bool
    ) -> Any:
        slot = 0 if first else index
        ids = (None, ids) if encoded else (ids,)
        output = model.apply({"params": params}, *ids, cache=cache, cache_index=slot, **encoded)
        return jax.nn.log_softmax(output.logits), output.cache

    cache = init_cache(model.cfg, *rows.ids_BT.shape)
    _, cache = read(params, encoded, rows.ids_BT[:, :start], cache, 0, True)
    losses = []
    for index in range(start, length, PIECE):
        piece = slice(index, index + PIECE)
        logprobs, cache = read(params, encoded, rows.ids_BT[:, piece], cache, index, False)
        labels = rows.labels_BT[:, piece, None]
        losses.append(-np.take_along_axis(np.asarray(logprobs), labels, axis=2)[:, :, 0])
    weights = rows.weights_BT[:, start:]
    return float(np.sum(np.concatenate(losses, axis=1) * weights) / np.sum(weights))


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
    several = commands.add_parser("families")
    several.add_argument("--out", type=Path, default=Path("runs/families"))
    several.add_argument("--steps", type=int, default=300)
    several.add_argument("--pages", nargs="+", default=list(PAGES), choices=PAGES)
    several.set_defaults(run=families)
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
