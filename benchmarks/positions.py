"""Compares the position encodings: the same model, trained at one length, evaluated there and at
four times that.

    python -m benchmarks.positions      # all, into docs/course/positions.md
    python -m benchmarks.positions --quick --only=alibi --only=learned --out=/tmp/positions

Every encoding of flaxformer_lite/nn/positions trains as a language model on the standard library's
sources. The held-out text is cut into rows of either length, so that both losses are of the same
tokens. Rotary positions are also stretched after training, and a learned table gets rows that no
example ever reaches.

Runs are kept in runs/positions: a command that was stopped continues, and the page is made again in
a minute.
"""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import flaxformer_lite
from benchmarks import positions_page
from flaxformer_lite import build_model, load_pretrained, registry
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.models import gpt2
from flaxformer_lite.nn.positions.encoding import Encoding, list_hooks
from flaxformer_lite.nn.positions.learned import Learned
from flaxformer_lite.nn.positions.nope import Nope
from flaxformer_lite.nn.positions.rope import Rope
from flaxformer_lite.objectives.rows import row_ids
from flaxformer_lite.objectives.text.causal_lm import CausalLm

LENGTH = 64
FACTOR = 4
LONG = LENGTH * FACTOR
STRETCHED = ("linear", "ntk", "dynamic", "yarn")


@dataclass(frozen=True)
class Subject:
    """An encoding as it is trained, or as trained weights are read with it.

    Attributes:
      name: of the row in the table.
      position: the encoding.
      rows: of its table, if it has one.
      weights: the subject whose weights it reads; empty: it is trained.
    """

    name: str
    position: Encoding
    rows: int = LENGTH
    weights: str = ""


@dataclass(frozen=True)
class Effort:
    """How much is trained, and how many rows of the long length are evaluated."""

    steps: int
    batch_size: int
    rows: int
    sizes: dict[str, int]


WHOLE = Effort(600, 32, 128, {"d_model": 64, "num_heads": 4, "mlp_dim": 256, "decoder_layers": 2})
QUICK = Effort(2, 8, 8, {"d_model": 16, "num_heads": 2, "mlp_dim": 32, "decoder_layers": 1})


def subjects() -> list[Subject]:
    """Lists every encoding with its defaults, then what else is made of them."""
    own = [
        Subject(name, registry.resolve_class("positions", name)())
        for name in registry.available("positions")
    ]
    original = {"factor": float(FACTOR), "original_max_position_embeddings": LENGTH}
    stretched = [
        Subject(f"rope, {name}", Rope(scaling=name, **original), weights="rope")
        for name in STRETCHED
    ]
    return [*own, Subject(f"learned, {LONG} rows", Learned(), rows=LONG), *stretched]


def config(subject: Subject, effort: Effort, text: str = "") -> ExperimentConfig:
    """Returns the experiment of a subject, which differs from the others in its encoding only."""
    steps = effort.steps
    width = effort.sizes["d_model"]
    # Token vectors of about unit size, as in the original Transformer: GPT-2's of 0.02 would drown
    # in what is added to them.
    model = gpt2.config(
        "tiny",
        vocab_size=0,
        max_length=subject.rows,
        dropout=0.0,
        position=subject.position,
        embed_power=0.5,
        init_stddev=width**-0.5,
        **effort.sizes,
    )
    optimizer = OptimizerConfig(
        learning_rate=2e-3, warmup_steps=min(50, steps), schedule="wsd", final_fraction=0.0
    )
    train = TrainConfig(
        steps=steps,
        batch_size=effort.batch_size,
        log_every=50,
        eval_every=steps,
        eval_batches=4,
        checkpoint_every=steps,
    )
    return ExperimentConfig(
        model=model,
        objective=CausalLm(documents="joined"),
        data=DataConfig(path=text, tokenizer=TokenizerConfig(vocab_size=1024), length=LENGTH),
        optimizer=optimizer,
        train=train,
    )


def held_out_text(cfg: ExperimentConfig, rows: int) -> np.ndarray:
    """Returns the first rows of the held-out text, ids [rows, LONG + 1]; `cfg` must allow that
    length."""
    data = open_dataset(
        dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, length=LONG)), "eval"
    )
    texts = (np.concatenate(row_ids(data.records, int(i))) for i in data.order)
    found = list(itertools.islice((ids for ids in texts if len(ids) == LONG + 1), rows))
    if not found:
        raise ConfigError(
            f"--text: less than {LONG + 1} tokens are held out of it; give more text."
        )
    return np.stack(found)


def losses(model: Any, params: Any, ids: np.ndarray) -> np.ndarray:
    """Computes the loss of each next token in nats, [rows, length]."""

    @jax.jit
    def run(ids_BT: jax.Array) -> jax.Array:
        logits_BTV = model.apply({"params": params}, ids_BT[:, :-1]).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits_BTV, ids_BT[:, 1:])

    size = min(len(ids), 32)
    return np.concatenate(
        [jax.device_get(run(ids[i : i + size])) for i in range(0, len(ids), size)]
    )


def windows(ids: np.ndarray) -> np.ndarray:
    """Cuts rows of LONG + 1 ids into rows of LENGTH + 1 with the same labels."""
    return np.concatenate([ids[:, start : start + LENGTH + 1] for start in range(0, LONG, LENGTH)])


def score(model: Any, params: Any, ids: np.ndarray) -> dict[str, Any]:
    """Evaluates a model on the same text in rows of either length; of the longer it may say why it
    refuses them."""
    short = losses(model, params, windows(ids))
    try:
        long = losses(model, params, ids)
    except ValueError as error:
        return {
            "same": float(short.mean()),
            "longer": str(error),
            "by_position": _means(short),
        }
    return {
        "same": float(short.mean()),
        "longer": float(long.mean()),
        "by_position": _means(long),
    }


def _means(loss_BT: np.ndarray) -> list[float]:
    """Averages over rows and BIN neighboring positions."""
    return (
        loss_BT.mean(axis=0, dtype=float)
        .reshape(-1, positions_page.BIN)
        .mean(axis=1)
        .round(4)
        .tolist()
    )


def measure(
    asked: list[Subject], effort: Effort, folder: Path, text: str
) -> Iterator[dict[str, Any]]:
    """Trains each subject and yields its results."""
    held = None
    for subject in asked:
        source = next(s for s in subjects() if s.name == (subject.weights or subject.name))
        workdir = folder / source.name.replace(", ", "_").replace(" ", "_")
        flaxformer_lite.run(config(source, effort, text), workdir)
        model, params = load_pretrained(workdir)
        model = build_model(dataclasses.replace(model.cfg, position=subject.position))
        if held is None:
            held = held_out_text(config(Subject("", Nope()), effort, text), effort.rows)
        picture = (
            None if subject.weights else positions_page.picture(subject.position, params, LONG)
        )
        yield {
            "name": subject.name,
            "hooks": list(list_hooks(subject.position)),
            "picture": picture,
        } | score(model, params, held)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [subject.name for subject in subjects()]
    parser.add_argument(
        "--only", action="append", choices=names, help="may be given again; all by default"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and two steps, to see that it runs"
    )
    parser.add_argument(
        "--text",
        default="",
        help="a file or folder of text; the standard library's sources by default",
    )
    parser.add_argument(
        "--runs", type=Path, help="the folder of the runs; runs/positions by default"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("docs/course"),
        help="gets positions.md and the folder positions",
    )
    args = parser.parse_args(arguments)
    asked = [subject for subject in subjects() if not args.only or subject.name in args.only]
    runs = args.runs or Path("runs/positions_quick" if args.quick else "runs/positions")
    try:
        results = list(measure(asked, QUICK if args.quick else WHOLE, runs, args.text))
    except ConfigError as error:
        sys.exit(f"error: {error}")
    positions_page.write(args.out, results, LENGTH, LONG)
    print(positions_page.table(results, LENGTH, LONG))


if __name__ == "__main__":
    main(sys.argv[1:])
