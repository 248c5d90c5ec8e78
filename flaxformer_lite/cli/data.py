"""The command `data`: sizes and examples of the data that a config trains on, and its tokens made
beforehand."""

import argparse
import collections
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.render_example import Renderer, parts_of
from flaxformer_lite.cli.tables import console
from flaxformer_lite.config import ExperimentConfig, plugin_name
from flaxformer_lite.data import table
from flaxformer_lite.data.corpus import Corpus, Records
from flaxformer_lite.data.pipeline import Dataset, open_dataset
from flaxformer_lite.data.stored import StoredFeatures
from flaxformer_lite.files.read import printable
from flaxformer_lite.models import build_model
from flaxformer_lite.runs import packing
from flaxformer_lite.runs.start import warm_start
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runtime import invocation
from flaxformer_lite.training.program import with_steps

SAMPLE = 512  # examples whose padding is counted
SHARES = 1, 5, 25, 50, 75, 95, 99  # percentiles
MOST_LABELS = 20  # listed with their numbers
BAR = 40  # columns
Rows = list[tuple[str, str]]
# by the name of the source; the records are those of the training split
Texts = Mapping[str, tuple[Corpus, Records]]


def run(args: argparse.Namespace) -> None:
    """Prints what `args.what` asks for."""
    flags.FLAGS.mark_as_parsed()  # grain reads flags of its own
    cfg = read_experiment(
        command_line.config(args.overrides),
        given=invocation.fields_given(args.overrides),
        allow_plugins=args.allow_plugins,
    )
    begun = time.time()
    clock = time.monotonic()
    data = open_dataset(cfg, "train", labels=warm_start.known_labels(cfg))
    seconds = time.monotonic() - clock
    out = console()
    if args.what == "show":
        _show(out, data, args.rows, cfg.seed if args.seed is None else args.seed)
    elif args.what == "tokenize":
        _print(out, _kept(data, seconds, begun))
    else:
        drawn = np.random.default_rng(0).permutation(data.num_examples)[:SAMPLE]
        texts = _texts(data)
        examples = [data.example(int(row), 0, number)["inputs"] for number, row in enumerate(drawn)]
        _print(
            out,
            [
                *_contents(data, texts, cfg.data.eval_path),
                *_rows(data, cfg, examples),
                ("time", f"{seconds:.1f} s to open"),
            ],
        )
        if texts:
            lengths = [np.diff(corpus.tokens["train"].offsets) for corpus, _ in texts.values()]
            _histogram(out, "tokens of a document", np.concatenate(lengths))
        else:
            _histogram(
                out,
                "tokens of an example",
                np.asarray([read for read, _ in map(_filled, examples)]),
            )


def _show(out: Console, data: Dataset, rows: int, seed: int) -> None:
    renderer = Renderer(data.tokenizer, data.objective.class_names)
    rows = min(rows, data.held or rows)
    batch = next(iter(data.batches(batch_size=rows, seed=seed)))
    for row in range(rows):
        example = {
            side: {name: x[row] for name, x in arrays.items()} for side, arrays in batch.items()
        }
        out.print(f"row {row}", style="bold")
        _print(out, renderer.lines(example))


def _texts(data: Dataset) -> Texts:
    if data.mixture:
        return {
            name: (rows.corpus, rows.splits["train"]) for name, rows in data.mixture.sources.items()
        }
    return {"": (data.corpus, data.splits["train"])} if data.corpus else {}


def _contents(data: Dataset, texts: Texts, eval_path: str) -> Rows:
    described = [row for row in data.described if not row[0].startswith("example ")]
    if not texts:
        return described + _label_counts(data)
    if data.corpus:
        source = data.corpus.source
        described = [("data", f"{source.where}: {source.kinds()} on disk")]
        described += [("notice", source.unread())] if source.unread() else []
    bytes_of = np.asarray([len(piece) for piece in data.tokenizer.pieces()])
    return described + [
        (f"{name} {title}".lstrip(), value)
        for (name, (corpus, records)) in texts.items()
        for title, value in _sizes(corpus, records.counts, bytes_of, eval_path)
    ]


def _sizes(corpus: Corpus, counts: np.ndarray, bytes_of: np.ndarray, eval_path: str) -> Rows:
    documents = {}
    tokens = {}
    for name, split in corpus.tokens.items():
        documents[name] = (len(split.offsets) - 1) // len(corpus.source.fields)
        tokens[name] = len(split.ids)
    text = int(counts @ bytes_of)
    held_out = f"{documents['eval']:,}"
    if eval_path:
        held_out += f" of {eval_path}"
    elif documents["train"] == documents["eval"]:
        held_out = "the end of each"
    vocabulary = f"{np.count_nonzero(counts):,} of the {len(counts):,} in the vocabulary occur"
    return [
        ("documents", f"{documents['train']:,} to train on, {held_out} held out"),
        ("tokens", f"{tokens['train']:,} to train on, {tokens['eval']:,} held out; {vocabulary}"),
        (
            "text",
            (
                f"{text:,} bytes to train on: {text / max(tokens['train'], 1):.2f} bytes a token,"
                f" {tokens['train'] / max(text, 1):.3f} tokens a byte"
            ),
        ),
    ]


def _label_counts(data: Dataset) -> Rows:
    found = []
    for column in data.objective.columns:
        values = [row[column.role] for row in data.splits["train"].rows] if column.predicted else []
        flat = [
            x for value in values for x in (value if isinstance(value, (list, tuple)) else [value])
        ]
        count = collections.Counter(str(x) for x in flat if isinstance(x, (str, int)))
        if count and len(count) <= max(MOST_LABELS, len(data.objective.class_names)):
            shares = (
                f"{name} {n:,} ({n / count.total():.0%})"
                for name, n in count.most_common(MOST_LABELS)
            )
            found.append((f"by {column.role}", ", ".join(shares)))
    return found


def _rows(data: Dataset, cfg: ExperimentConfig, examples: list[Any]) -> Rows:
    read, room = (sum(column) for column in zip(*map(_filled, examples), strict=True))
    train = data.num_examples
    size = cfg.train.batch_size
    steps = with_steps(cfg, train, data.held).train.steps
    records = data.records
    epochs = "" if data.mixture else f": {cfg.train.epochs or steps * size / train:.3g} epochs"
    lengths = f"{records.length} tokens" + (
        f" and {records.target_length}" if records.target_length else ""
    )
    held_out = f"{len(data.splits['eval']):,} held out"
    return [
        (
            "rows",
            f"{train:,} an epoch by {plugin_name(data.objective)}, each of {lengths}; {held_out}",
        ),
        ("padding", f"{1 - read / room:.1%} of {room:,} tokens of {len(examples):,} rows"),
        *_packed(data, cfg),
        ("the run", f"{steps:,} steps of {size} rows{epochs}"),
    ]


def _packed(data: Dataset, cfg: ExperimentConfig) -> Rows:
    """Returns what a run on one device computes of batches of labelled rows."""
    one = {"data": 1, "fsdp": 1, "context": 1}
    return packing.packers(cfg, build_model(cfg.model), one, data)[1]


def _filled(inputs: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Returns how many tokens an example has, and its room for them."""
    ids = [name for name in ("input_ids", "decoder_input_ids") if name in inputs]
    parts = [parts_of(name, inputs) for name in ids]
    return sum(int((part > 0).sum()) for part in parts), sum(part.size for part in parts)


def _histogram(out: Console, title: str, found: np.ndarray) -> None:
    """Prints percentiles, and how many lengths lie between powers of two."""
    out.print(f"\n{title}: mean {found.mean():,.1f}, longest {found.max():,}")
    lengths = np.percentile(found, SHARES)
    out.print(
        "  ".join(f"{share}% {round(at):,}" for share, at in zip(SHARES, lengths, strict=True))
    )
    powers = np.bincount(np.log2(np.maximum(found, 1)).astype(int))
    for power in range(int(np.flatnonzero(powers)[0]), len(powers)):
        bar = "█" * round(BAR * powers[power] / powers.max())
        out.print(
            f"{2**power:>11,} to {2 ** (power + 1) - 1:>11,} {powers[power]:>12,} {bar}".rstrip()
        )


def _kept(data: Dataset, seconds: float, begun: float) -> Rows:
    if not (texts := _texts(data)):
        return [*data.described[:1], ("kept", _kept_rows(data))]
    rows = []
    size = 0
    for name, (corpus, _) in texts.items():
        ids = [tokens.ids for tokens in corpus.tokens.values()]
        folder = Path(next(str(x.filename) for x in ids if isinstance(x, np.memmap))).parent
        made = folder.stat().st_mtime >= begun
        size += made * corpus.source.size
        how = "made" if made else "there already"
        rows += [
            (f"{name} data".lstrip(), f"{corpus.source.where}: {corpus.source.kinds()}"),
            ("", f"{sum(map(len, ids)):,} tokens, {how}: {folder}"),
        ]
    speed = f", {size / 1e6 / seconds:.1f} MB/s" if size else ""
    return [
        *rows,
        ("rows", f"{data.num_examples:,} to train on"),
        ("time", f"{seconds:.1f} s{speed}"),
    ]


def _kept_rows(data: Dataset) -> str:
    """Describes where the tokens of a table are."""
    folders = [
        str(part.features.folder)
        for part in data.splits.values()
        if isinstance(part.features, StoredFeatures)
    ]
    if folders:
        return ", ".join(folders)
    size = f"{table.SMALL >> 20} MiB"
    return f"nothing but the tokenizer: a table of less than {size} is read whenever a run starts"


def _print(out: Console, rows: Iterable[tuple[str, str | Text]]) -> None:
    """Prints rows in two columns; a file or pipe gets a line for each, however long."""
    grid = Table.grid(padding=(0, 2))
    rows = list(rows)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        if isinstance(value, str):
            value = printable(value)
        grid.add_row(name, value)
        if not out.is_terminal:
            out.print(f"{name:{width}}  {value}", soft_wrap=True)
    if out.is_terminal:
        out.print(grid)
