"""Writes predictions for the rows of a table: its columns, then those of the task."""

import argparse
import csv
import dataclasses
import io
import itertools
import json
from pathlib import Path
from typing import Literal

import numpy as np

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.open_model import folder_of, print_notice, print_warnings
from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.dataset import Dataset
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.tables.zero_shot import HYPOTHESIS, ZeroShot
from flaxformer_lite.runs.evaluate_file import Trained, open_file, open_trained

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of cells that spreadsheets compute


def run(args: argparse.Namespace) -> None:
    """Writes the predictions, as csv on stdout if no file is named."""
    if args.labels is None and (args.hypothesis is not None or args.multi_label):
        raise ConfigError("--hypothesis, --multi_label: are for --labels; name them.")
    with print_warnings():
        trained = open_trained(
            folder_of(args.model),
            dtype=args.dtype,
            allow_plugins=args.allow_plugins,
            **options_of(args),
        )
        if args.labels is not None:
            trained = _with_labels(trained, args)
        data = open_file(trained, args.data, predicts=True)
        _, predictions = trained.evaluate(data, scored=False)
        rows = predicted_rows(data, predictions)
    if args.output:
        write_rows(args.output, rows)
        print(f"{args.output}: {len(rows):,} rows")
    else:
        _note_formulas(rows)
        command_line.print_text(_delimited(rows, ","), end="")


def _with_labels(trained: Trained, args: argparse.Namespace) -> Trained:
    """Returns a model of natural-language inference with the labels of the command line."""
    labels = filter(None, map(str.strip, args.labels.split(",")))
    objective = ZeroShot.of_classes(
        trained.cfg.objective.published_fields().get("labels", ()),
        tuple(dict.fromkeys(labels)),
        args.hypothesis or HYPOTHESIS,
        multi_label=args.multi_label,
    )
    return trained._replace(cfg=dataclasses.replace(trained.cfg, objective=objective))


def options_of(args: argparse.Namespace) -> Json:
    """Returns the options of `open_trained` that the command line sets."""
    return {"length": args.length, "columns": args.columns, "batch_size": args.batch_size}


def predicted_rows(data: Dataset, predictions: dict[str, np.ndarray]) -> list[Json]:
    """Returns the rows of the table, each with its predictions."""
    records = data.records
    decoded = data.task.decode(predictions, records)
    rows = records.table.rows
    if rows:
        replaced = [repr(name) for name in decoded[0] if name in rows[0]]
        if replaced:
            print_notice(f"columns of the table that predictions replace: {', '.join(replaced)}.")
    return [{**row, **more} for row, more in zip(rows, decoded, strict=True)]


def write_rows(path: Path, rows: list[Json]) -> None:
    """Writes rows in the format of the file's suffix; the file appears once it is complete."""
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    elif path.suffix == ".csv":
        _note_formulas(rows)
        text = _delimited(rows, ",")
    else:
        _note_formulas(rows)
        text = _delimited(rows, "\t")
        if '"' in text:  # a quoted first line marks quotes as syntax
            text = _delimited(rows, "\t", csv.QUOTE_ALL)
    write_file(path, text.encode())


def _delimited(
    rows: list[Json], separator: str, quoting: Literal[0, 1, 2, 3] = csv.QUOTE_MINIMAL
) -> str:
    file = io.StringIO()
    names = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    writer = csv.DictWriter(file, names, delimiter=separator, lineterminator="\n", quoting=quoting)
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return file.getvalue()


def _note_formulas(rows: list[Json]) -> None:
    """Prints a notice about texts that a spreadsheet would compute."""
    count = 0
    for row in rows:
        count += sum(map(_is_formula, row.values()))
    if count:
        print_notice(
            f"{count:,} cells begin like a formula (one of = + - @), which a spreadsheet would"
            " compute; import the columns as text."
        )


def _is_formula(value: object) -> bool:
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value
