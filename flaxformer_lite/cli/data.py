"""What a config trains on: its sizes, its examples as the model sees them, and its tokens made beforehand."""

import argparse
import collections
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.render_example import Renderer, parts_of
from flaxformer_lite.config import ExperimentConfig, plugin_name
from flaxformer_lite.data.pipeline import Dataset, open_dataset
from flaxformer_lite.runtime import invocation
from flaxformer_lite.training.start import warm_start
from flaxformer_lite.training.start.adopt import read_experiment

SAMPLE = 512  # examples whose padding is counted
SHARES = 1, 5, 25, 50, 75, 95, 99  # percentiles
MOST_LABELS = 20  # listed with their numbers
BAR = 40  # columns
Rows = list[tuple[str, str]]


def run(args: argparse.Namespace) -> None:
    """Prints what `args.what` asks for."""
    flags.FLAGS.mark_as_parsed()  # grain reads flags of its own
    cfg = read_experiment(command_line.config(args.overrides), given=invocation.fields_given(args.overrides))
    begun, clock = time.time(), time.monotonic()
    data = open_dataset(cfg, "train", labels=warm_start.known_labels(cfg))
    seconds = time.monotonic() - clock
    out = Console(width=None if Console().is_terminal else 120, highlight=False, markup=False, emoji=False)
    if args.what == "show":
        _show(out, data, args.rows, cfg.seed if args.seed is None else args.seed)
    elif args.what == "tokenize":
        _print(out, _kept(data, cfg, seconds, begun))
    else:
        lengths = _document_lengths(data)
        examples = list(_sample(data))
        _print(out, [*_contents(data), *_rows(data, cfg, examples), ("time", f"{seconds:.1f} s to open")])
        if lengths is None:
            _histogram(out, "tokens of an example", [read for read, _ in map(_filled, examples)])
        else:
            _histogram(out, "tokens of a document", lengths)


def _show(out: Console, data: Dataset, rows: int, seed: int) -> None:
    renderer = Renderer(data.tokenizer, getattr(data.objective, "labels", ()))
    batch = next(iter(data.batches(batch_size=rows, seed=seed)))
    for row in range(rows):
        example = {side: {name: x[row] for name, x in arrays.items()} for side, arrays in batch.items()}
        out.print(f"row {row}", style="bold")
        _print(out, renderer.lines(example))


def _contents(data: Dataset) -> Rows:
    if data.corpus is None:
        return [row for row in data.described if not row[0].startswith("example ")] + _label_counts(data)
    source, counts = data.corpus.source, data.splits["train"].counts
    documents, tokens = {}, {}
    for name, split in data.corpus.tokens.items():
        documents[name], tokens[name] = (len(split.offsets) - 1) // len(source.fields), len(split.ids)
    text = int(sum(count * len(piece) for count, piece in zip(counts.tolist(), data.tokenizer.pieces(), strict=True)))
    held_out = "the end of each" if documents["train"] == documents["eval"] else f"{documents['eval']:,}"
    vocabulary = f"{np.count_nonzero(counts):,} of the {data.vocab_size:,} in the vocabulary occur"
    return [
        ("data", f"{source.where}: {source.kinds()} on disk"),
        *([("notice", source.unread())] if source.unread() else []),
        ("documents", f"{documents['train']:,} to train on, {held_out} held out"),
        ("tokens", f"{tokens['train']:,} to train on, {tokens['eval']:,} held out; {vocabulary}"),
        ("text", f"{text:,} bytes to train on: {text / max(tokens['train'], 1):.2f} bytes a token,"
                 f" {tokens['train'] / max(text, 1):.3f} tokens a byte"),
    ]  # fmt: skip


def _label_counts(data: Dataset) -> Rows:
    found = []
    for column in data.objective.columns:
        values = [row[column.role] for row in data.splits["train"].rows] if column.predicted else []
        flat = [x for value in values for x in (value if isinstance(value, (list, tuple)) else [value])]
        count = collections.Counter(str(x) for x in flat if isinstance(x, (str, int)))
        if count and len(count) <= max(MOST_LABELS, len(getattr(data.objective, "labels", ()))):
            shares = (
                f"{name} {number:,} ({number / count.total():.0%})" for name, number in count.most_common(MOST_LABELS)
            )
            found.append((f"by {column.role}", ", ".join(shares)))
    return found


def _rows(data: Dataset, cfg: ExperimentConfig, examples: list[Any]) -> Rows:
    read, room = (sum(column) for column in zip(*map(_filled, examples), strict=True))
    train, size = data.num_examples, cfg.train.batch_size
    epochs = cfg.train.epochs or cfg.train.steps * size / train
    steps = cfg.train.steps or round(cfg.train.epochs * train / size)
    records = data.splits["train"]
    lengths = f"{records.length} tokens" + (f" and {records.target_length}" if records.target_length else "")
    held_out = f"{len(data.splits['eval']):,} held out"
    return [
        ("rows", f"{train:,} an epoch by {plugin_name(data.objective)}, each of {lengths}; {held_out}"),
        ("padding", f"{1 - read / room:.1%} of {room:,} tokens of {len(examples):,} rows"),
        ("the run", f"{steps:,} steps of {size} rows: {epochs:.3g} epochs"),
    ]


def _sample(data: Dataset) -> Iterator[Mapping[str, Any]]:
    drawn = np.random.default_rng(0).permutation(data.num_examples)[:SAMPLE]
    return (data.example(int(row), 0, number)["inputs"] for number, row in enumerate(drawn))


def _filled(inputs: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Returns how many tokens an example has, and its room for them."""
    ids = [name for name in ("input_ids", "decoder_input_ids") if name in inputs]
    parts = [parts_of(name, inputs) for name in ids]
    return sum(int((part > 0).sum()) for part in parts), sum(part.size for part in parts)


def _document_lengths(data: Dataset) -> np.ndarray | None:
    return None if data.corpus is None else np.diff(data.corpus.tokens["train"].offsets)


def _histogram(out: Console, title: str, lengths: Any) -> None:
    """Prints percentiles, and how many lengths lie between powers of two."""
    found = np.asarray(lengths)
    out.print(f"\n{title}: mean {found.mean():,.1f}, longest {found.max():,}")
    out.print(
        "  ".join(f"{share}% {round(at):,}" for share, at in zip(SHARES, np.percentile(found, SHARES), strict=True))
    )
    powers = np.bincount(np.log2(np.maximum(found, 1)).astype(int))
    for power in range(int(np.flatnonzero(powers)[0]), len(powers)):
        bar = "█" * round(BAR * powers[power] / powers.max())
        out.print(f"{2**power:>11,} to {2 ** (power + 1) - 1:>11,} {powers[power]:>12,} {bar}".rstrip())


def _kept(data: Dataset, cfg: ExperimentConfig, seconds: float, begun: float) -> Rows:
    if data.corpus is None:
        return [*data.described[:1], ("kept", "nothing but the tokenizer: a table is tokenized whenever a run starts")]
    ids, source = {name: tokens.ids for name, tokens in data.corpus.tokens.items()}, data.corpus.source
    folder = Path(next(str(x.filename) for x in ids.values() if isinstance(x, np.memmap)))
    made = folder.stat().st_mtime >= begun
    how = f"made in {seconds:.1f} s, {source.size / 1e6 / seconds:.1f} MB/s" if made else "were there"
    return [
        ("data", f"{source.where}: {source.kinds()}"),
        ("tokens", f"{sum(map(len, ids.values())):,}, {how}"),
        ("rows", f"{data.num_examples:,} of {cfg.data.length} tokens to train on"),
        ("kept in", str(folder.parent)),
    ]


def _print(out: Console, rows: Iterable[tuple[str, str | Text]]) -> None:
    """Prints rows in two columns; a file or pipe gets a line for each, however long."""
    table, rows = Table.grid(padding=(0, 2)), list(rows)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        table.add_row(name, value)
        if not out.is_terminal:
            out.print(f"{name:{width}}  {value}", soft_wrap=True)
    if out.is_terminal:
        out.print(table)
