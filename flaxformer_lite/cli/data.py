"""Prints the sizes or the first examples of a config's data, or tokenizes it beforehand."""

import argparse
import collections
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flaxformer_lite.cli.open_model import print_warnings
from flaxformer_lite.cli.read_page import read_page
from flaxformer_lite.cli.render_example import Renderer, parts_of
from flaxformer_lite.cli.tables import make_console
from flaxformer_lite.config import ExperimentConfig, plugin_name
from flaxformer_lite.data import rows as table_rows
from flaxformer_lite.data.dataset import Dataset, name_held_out, open_dataset
from flaxformer_lite.data.records import Corpus, Records
from flaxformer_lite.files.read import escape_controls
from flaxformer_lite.models import build_model
from flaxformer_lite.objectives.tables.task import Labelled, Task
from flaxformer_lite.runs import padding
from flaxformer_lite.runs.start import warm_start
from flaxformer_lite.sharding.activations import MESH_AXES
from flaxformer_lite.storage import content_cache
from flaxformer_lite.training.program import with_steps

SAMPLED_EXAMPLES = 512  # examples whose padding is counted
SHARES = 1, 5, 25, 50, 75, 95, 99  # percentiles
MOST_LABELS = 20  # listed with their numbers
BAR_COLUMNS = 40  # columns
Rows = list[tuple[str, str]]
# By the name of the source, with the records of the training split.
Texts = Mapping[str, tuple[Corpus, Records]]


def run(args: argparse.Namespace) -> None:
    """Prints statistics or examples, or tokenizes, as `args.what` says."""
    flags.FLAGS.mark_as_parsed()  # grain reads flags of its own
    cfg = read_page(args)
    cached = set(content_cache.local(cfg.data.cache).glob("store-*"))
    clock = time.monotonic()
    cfg = name_held_out(cfg)
    with print_warnings():
        data = open_dataset(cfg, "train", labels=warm_start.known_labels(cfg))
    seconds = time.monotonic() - clock
    out = make_console()
    if args.what == "show":
        seed = cfg.seed
        _show(out, data, args.rows, seed)
    elif args.what == "tokenize":
        _print(out, _cached(data, seconds, cached))
    else:
        _show_stats(out, data, cfg, seconds)


def _show_stats(out: Console, data: Dataset, cfg: ExperimentConfig, seconds: float) -> None:
    # A fixed seed, so that two looks at the same data say the same.
    drawn = np.random.default_rng(0).permutation(data.num_examples)[:SAMPLED_EXAMPLES]
    texts = _texts(data)
    examples = []
    for number, row in enumerate(drawn):
        examples.append(data.example(int(row), 0, number)["inputs"])
    rows = _contents(data, texts, cfg.data.eval_path)
    rows += _rows(data, cfg, examples)
    rows.append(("time", f"{seconds:.1f} s to open"))
    _print(out, rows)
    if texts:
        lengths = []
        for corpus, _ in texts.values():
            train = corpus.tokens["train"]
            lengths += [np.diff(train.offsets_of(name)) for name in train.names]
        _histogram(out, "tokens of a document", np.concatenate(lengths))
    else:
        counts = [count for count, _ in map(_filled, examples)]
        _histogram(out, "tokens of an example", np.asarray(counts))


def _show(out: Console, data: Dataset, rows: int, seed: int) -> None:
    renderer = Renderer(data.tokenizer, data.objective.published_fields().get("labels", ()))
    rows = min(rows, data.held or rows)
    batch = next(iter(data.batches(batch_size=rows, seed=seed)))
    for row in range(rows):
        example = {}
        for side, arrays in batch.items():
            example[side] = {name: x[row] for name, x in arrays.items()}
        out.print(f"row {row}", style="bold")
        _print(out, [*renderer.lines(example), *_tokens_cut(data, seed, row)])
    _print(out, [line for line in data.described if line[0] == "notice"])


def _tokens_cut(data: Dataset, seed: int, row: int) -> Rows:
    """Tells which texts of a row of the training stream lost tokens."""
    if not isinstance(data.objective, Task):
        return []
    records, number = data.finder(seed)(row)
    lines = []
    counts = records.tokens_cut(number)
    for text, count in enumerate(counts, start=1):
        if count:
            lines.append(("cut", f"{count:,} tokens of text {text}"))
    return lines


def _texts(data: Dataset) -> Texts:
    texts = {}
    for name, stream in data.sources.items():
        if stream.corpus is not None:
            texts[name] = stream.corpus, stream.splits["train"]
    return texts


def _contents(data: Dataset, texts: Texts, eval_path: str) -> Rows:
    described = [row for row in data.described if not row[0].startswith("example ")]
    if not texts:
        return described + _label_counts(data)
    if "" in texts:
        source = texts[""][0].source
        described = [("data", f"{source.where}: {source.kinds()} on disk")]
        if source.unread():
            described.append(("notice", source.unread()))
    bytes_of = np.asarray([len(piece) for piece in data.tokenizer.pieces()])
    for name, (corpus, records) in texts.items():
        for title, value in _sizes(corpus, records.count_tokens(), bytes_of, eval_path):
            described.append((f"{name} {title}".lstrip(), value))
    return described


def _sizes(corpus: Corpus, counts: np.ndarray, bytes_of: np.ndarray, eval_path: str) -> Rows:
    documents = {}
    tokens = {}
    for name, split in corpus.tokens.items():
        documents[name] = len(split)
        tokens[name] = split.num_tokens
    text = int(counts @ bytes_of)
    held_out = f"{documents['eval']:,}"
    if eval_path:
        held_out += f" of {eval_path}"
    elif documents["train"] == documents["eval"]:
        held_out = "the end of each"
    vocabulary = f"{np.count_nonzero(counts):,} of the {len(counts):,} in the vocabulary occur"
    bytes_per_token = text / max(tokens["train"], 1)
    tokens_per_byte = tokens["train"] / max(text, 1)
    compression = f"{bytes_per_token:.2f} bytes a token, {tokens_per_byte:.3f} tokens a byte"
    return [
        ("documents", f"{documents['train']:,} to train on, {held_out} held out"),
        ("tokens", f"{tokens['train']:,} to train on, {tokens['eval']:,} held out; {vocabulary}"),
        ("text", f"{text:,} bytes to train on: {compression}"),
    ]


def _label_counts(data: Dataset) -> Rows:
    """Counts the labels of each predicted column that has few different ones."""
    described = []
    labels = data.objective.published_fields().get("labels", ())
    for column in data.task.columns:
        if not column.predicted:
            continue
        counts: collections.Counter[str] = collections.Counter()
        for number, row in enumerate(data.splits["train"].rows):
            if isinstance(data.task, Labelled) and data.task.labels:
                for label in data.task.labels_in(row, number):
                    counts[data.task.labels[data.task.index(label, column.role)]] += 1
                continue
            value = row[column.role]
            for item in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(item, (str, int)):
                    counts[str(item)] += 1
        if not counts or len(counts) > max(MOST_LABELS, len(labels)):
            continue
        shares = []
        for label, count in counts.most_common(MOST_LABELS):
            shares.append(f"{label} {count:,} ({count / counts.total():.0%})")
        described.append((f"by {column.role}", ", ".join(shares)))
    return described


def _rows(data: Dataset, cfg: ExperimentConfig, examples: list[Any]) -> Rows:
    read = 0
    room = 0
    for example in examples:
        tokens, size = _filled(example)
        read += tokens
        room += size
    train = data.num_examples
    size = cfg.train.batch_size
    steps = with_steps(cfg, train, data.held).train.steps
    records = data.records
    epochs = ""
    if not data.mixing:
        epochs = f": {cfg.train.epochs or steps * size / train:.3g} epochs"
    lengths = f"{records.length} tokens"
    if records.target_length:
        lengths += f" and {records.target_length}"
    held_out = f"{len(data.splits['eval']):,} held out"
    rows = f"{train:,} per epoch by {plugin_name(data.objective)}, each of {lengths}; {held_out}"
    return [
        ("rows", rows),
        ("padding", f"{1 - read / room:.1%} of {room:,} tokens of {len(examples):,} rows"),
        *_packed(data, cfg),
        ("the run", f"{steps:,} steps of {size} rows{epochs}"),
    ]


def _packed(data: Dataset, cfg: ExperimentConfig) -> Rows:
    """Describes the packing of labelled rows in a run on one device."""
    single = dict.fromkeys(MESH_AXES, 1)
    _, described = padding.plan_packing(cfg, build_model(cfg.model), single, data)
    return described


def _filled(inputs: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Returns the number of tokens of an example, without and with padding."""
    tokens = 0
    size = 0
    for name in ("input_ids", "decoder_input_ids"):
        if name in inputs:
            part = parts_of(name, inputs)
            tokens += int((part > 0).sum())
            size += part.size
    return tokens, size


def _histogram(out: Console, title: str, lengths: np.ndarray) -> None:
    """Prints percentiles, and the number of lengths between powers of two."""
    out.print(f"\n{title}: mean {lengths.mean():,.1f}, longest {lengths.max():,}")
    percentiles = zip(SHARES, np.percentile(lengths, SHARES), strict=True)
    out.print("  ".join(f"{share}% {round(length):,}" for share, length in percentiles))
    counts = np.bincount(np.log2(np.maximum(lengths, 1)).astype(int))
    for power in range(int(np.flatnonzero(counts)[0]), len(counts)):
        bar = "█" * round(BAR_COLUMNS * counts[power] / counts.max())
        span = f"{2**power:>11,} to {2 ** (power + 1) - 1:>11,}"
        out.print(f"{span} {counts[power]:>12,} {bar}".rstrip())


def _cached(data: Dataset, seconds: float, before: Collection[Path]) -> Rows:
    texts = _texts(data)
    if not texts:
        return [*data.described[:1], ("cache", _cached_rows(data))]
    rows = []
    size = 0
    for name, (corpus, _) in texts.items():
        tokens = sum(split.num_tokens for split in corpus.tokens.values())
        folder = corpus.tokens["train"].store.folder
        is_new = folder not in before
        if is_new:
            size += corpus.source.size
        how = "written" if is_new else "already in the cache"
        rows.append((f"{name} data".lstrip(), f"{corpus.source.where}: {corpus.source.kinds()}"))
        rows.append(("", f"{tokens:,} tokens, {how}: {folder}"))
    speed = f", {size / 1e6 / seconds:.1f} MB/s" if size else ""
    rows.append(("rows", f"{data.num_examples:,} to train on"))
    rows.append(("time", f"{seconds:.1f} s{speed}"))
    return rows


def _cached_rows(data: Dataset) -> str:
    """Describes where the tokens of a table are cached."""
    folders = []
    for part in data.splits.values():
        if part.store.folder:
            folders.append(str(part.store.folder))
    if folders:
        return ", ".join(folders)
    size = f"{table_rows.SMALL_BYTES >> 20} MiB"
    return f"the tokenizer only; a table of less than {size} is tokenized when a run starts"


def _print(out: Console, rows: Iterable[tuple[str, str | Text]]) -> None:
    """Prints rows in two columns, wrapped on a terminal, one line each in a file or pipe."""
    grid = Table.grid(padding=(0, 2))
    rows = list(rows)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        if isinstance(value, str):
            value = escape_controls(value)
        grid.add_row(name, value)
        if not out.is_terminal:
            out.print(f"{name:{width}}  {value}", soft_wrap=True)
    if out.is_terminal:
        out.print(grid)
