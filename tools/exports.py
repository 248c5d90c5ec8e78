"""Exports a tiny model of every family to ONNX, and writes docs/benchmarks/exports.txt.

Of ONNX each program with fixed and symbolic sizes; of models that generate, 64 greedy ids.

    python -m tools.exports --only gpt2
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import tempfile
import traceback
from pathlib import Path

import jax
import numpy as np

from flaxformer_lite import generate, registry
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export.cases import largest_difference, make_cases
from flaxformer_lite.contrib.export.folder import open_files
from flaxformer_lite.contrib.export.onnx import write_onnx
from flaxformer_lite.contrib.export.programs import ExportProgram, programs_of
from flaxformer_lite.contrib.export.weights import stored_as
from tests.contrib.export.greedy import greedy
from tests.models.tiny import OWN, built, small

ROWS = [[3, 4, 5, 6, 7], [8, 9, 10], [11, 12]]
IDS = 64
PAGE = Path(__file__).parents[1] / "docs/benchmarks/exports.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="beginning of the families' names")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/exports.txt")
    args = parser.parse_args()
    names = [name for name in registry.available("models") if name.startswith(args.only)]
    rows = []
    for name in names:
        if name in OWN:
            continue
        found = outcome(name)
        for row in found:
            print(" | ".join(row), flush=True)
        rows += found
        if args.write:
            PAGE.write_text(page(rows))


def outcome(family: str) -> list[tuple[str, ...]]:
    """Returns a row for each program of a family: its name, differences, ids, or why not."""
    try:
        return exported(family)
    except ConfigError as error:
        return [(family, "-", "-", "-", str(error))]
    except Exception as error:  # a row of the table, whatever jax2onnx raises
        last = traceback.extract_tb(error.__traceback__)[-1]
        return [(family, "-", "-", "-", f"{type(error).__name__} in {last.name}: {error}"[:200])]


def exported(family: str) -> list[tuple[str, ...]]:
    cfg = small(family, max_length=IDS + 16)
    model, params = built(cfg)
    stored = stored_as("float32", params)
    programs = programs_of(model)
    start = cfg.decoder_start_token_id or 0
    cases = make_cases(programs, params, ROWS, start=start)
    with tempfile.TemporaryDirectory() as folder:
        files = {program.name: Path(folder, f"{program.name}.onnx") for program in programs}
        for program in programs:
            write_onnx(files[program.name], program, stored)
        runner = open_files(files)
        symbolic = largest_difference(cases, runner)
        fixed = {}
        for program in programs:
            chosen = [case for case in cases if case.program == program.name][:1]
            path = Path(folder, f"{program.name}_fixed.onnx")
            try:
                write_onnx(path, with_sizes(program, chosen[0].inputs), stored)
                apart = largest_difference(chosen, open_files({program.name: path}))
                fixed[program.name] = f"{apart[program.name]:.1e}"
            except ConfigError as error:
                print(f"{family}, {program.name}, fixed: {error}", flush=True)
                fixed[program.name] = "fails"
        ids = {}
        if programs[-1].name == "decode":
            ids["decode"] = same_ids(model, params, programs, runner, start)
    return [
        (
            family,
            name,
            fixed[name],
            f"{symbolic[name]:.1e}",
            ids.get(name, ""),
        )
        for name in symbolic
    ]


def with_sizes(program: ExportProgram, inputs: dict[str, np.ndarray]) -> ExportProgram:
    specs = {
        name: jax.ShapeDtypeStruct(inputs[name].shape, inputs[name].dtype)
        for name in program.inputs
    }
    return dataclasses.replace(program, inputs=specs)


def same_ids(model, params, programs, runner, start: int) -> str:
    """Says whether the file writes the ids that `generate` writes."""
    is_pair = len(programs) == 2
    width = max(map(len, ROWS))
    rows = np.zeros((len(ROWS), width), np.int32)
    for number, row in enumerate(ROWS):
        first = 0 if is_pair else width - len(row)
        rows[number, first : first + len(row)] = row
    options = {"decoder_start_token_id": start} if is_pair else {}
    due = generate(model, params, rows, rows > 0, max_new_tokens=IDS, eos_token_id=None, **options)
    written = greedy(programs, runner, ROWS, IDS, start)
    same = int((written == np.asarray(due)[:, -IDS:]).all(axis=1).sum())
    return f"{same} of {len(ROWS)}"


def page(rows: list[tuple[str, ...]]) -> str:
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("jax", "jax2onnx", "onnx", "onnxruntime")
    )
    lines = [
        "# Exports",
        "",
        "Each family as a tiny model with random weights, written by `flaxformer_lite export`'s"
        " functions to ONNX and run by onnxruntime beside the model: the largest difference, of"
        " files with fixed sizes and of those with symbols for batch and lengths, and how many of"
        f" {len(ROWS)} rows of {IDS} greedy ids are equal.",
        "",
        f"Written by `make exports` on {datetime.date.today()}, {versions}.",
        "",
        "| family | program | fixed | symbolic | ids |",
        "|---|---|--:|--:|---|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
