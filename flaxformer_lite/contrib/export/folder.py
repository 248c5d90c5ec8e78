"""The files of an export: the programs and their test cases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export.cases import (
    RELATIVE_TOLERANCE,
    Run,
    largest_difference,
    load_cases,
    make_cases,
    save_cases,
)
from flaxformer_lite.contrib.export.onnx import open_onnx, write_onnx
from flaxformer_lite.contrib.export.programs import ExportProgram, programs_of
from flaxformer_lite.contrib.export.stablehlo import open_stablehlo, write_stablehlo
from flaxformer_lite.contrib.export.weights import stored_as, widen_weights
from flaxformer_lite.nn.adapters.merge import merge_adapter
from flaxformer_lite.nn.modules.layout import unstack_layers
from flaxformer_lite.pretrained.sentences import SentenceLayers
from flaxformer_lite.types import Params

SUFFIXES = (".onnx", ".stablehlo")
CASES = "test_cases.npz"


class Exported(NamedTuple):
    """The programs of an export.

    Attributes:
      files: the file of each program, by its name.
      differences: the largest difference of each program's outputs from ours, by the file's own
        weights.
      losses: the same, from those of the weights in float32.
    """

    files: dict[str, Path]
    differences: dict[str, float]
    losses: dict[str, float]


def export_model(
    path: str | Path,
    model: nn.Module,
    params: Params,
    *,
    layers: SentenceLayers | None = None,
    weights: str = "float32",
    rows: Sequence[Sequence[int]] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Exported:
    """Writes a model as files that run without this package.

    Batches and lengths are of any size. A model that reads and then writes becomes two files, such
    as `model.encode.onnx` and `model.decode.onnx`; see `programs_of`. Beside them are the test
    cases that the files have just been run on.

        >>> model, params = load_pretrained("path/to/bert")  # doctest: +SKIP
        >>> export_model("exported/model.onnx", model, params)  # doctest: +SKIP

    Args:
      path: a file in an existing folder, whose suffix is the format: .onnx or .stablehlo.
      model, params: a model of a family. An adapter is merged, and matrices in few bits become
        floats.
      layers: the layers of a sentence model, from `load_sentence_layers`.
      weights: what the file stores: `float32`, `float16` or `int8`; arithmetic is in float32.
      rows: ids of texts for the test cases; None makes some up.
      metadata: texts by name, for .onnx files.

    Raises:
      ConfigError: the model cannot be exported, or what the files compute is not what it computes.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: must end in {' or '.join(SUFFIXES)}.")
    if rows is not None and not (len(rows) and all(len(row) for row in rows)):
        raise ConfigError("rows: must be lists of ids, at least one of each.")
    model, params = merge_adapter(model, dict(params))
    params = unstack_layers(params)
    programs = programs_of(model, layers)
    stored = stored_as(weights, params)
    made = {program.name: _file_of(path, program, programs) for program in programs}
    for program in programs:
        if path.suffix == ".onnx":
            write_onnx(made[program.name], program, stored, metadata=metadata)
        else:
            write_stablehlo(made[program.name], program, stored)
    start = model.cfg.decoder_start_token_id or 0
    texts = rows or _made_up(model.cfg.vocab_size)
    longest = model.cfg.max_length if model.cfg.has_position_table else None
    if longest is not None and programs[0].name == "decode":
        texts = [row[: longest - 1] for row in texts]  # a case reads one token more
    save_cases(path.parent / CASES, make_cases(programs, widen_weights(stored), texts, start=start))
    differences = check_files(path)
    exact = make_cases(programs, params, texts, start=start)
    losses = largest_difference(exact, open_files(made))
    return Exported(made, differences, losses)


def check_files(path: str | Path) -> dict[str, float]:
    """Runs exported files on the test cases beside them; returns the largest differences.

    Raises:
      ConfigError: files are missing, or a difference is above 1e-4.
    """
    path = Path(path)
    cases = load_cases(path.parent / CASES)
    names = {case.program for case in cases}
    stem, _, program = path.stem.rpartition(".")
    if len(names) > 1 and program in names:  # one file of a pair stands for both
        path = path.with_name(f"{stem}{path.suffix}")
    files = {}
    for name in names:
        files[name] = path
        if len(names) > 1:
            files[name] = _several(path, name)
    differences = largest_difference(cases, open_files(files))
    for program, difference in differences.items():
        if not difference <= RELATIVE_TOLERANCE:
            raise ConfigError(
                f"{path}: {program} differs by {difference:.1e} from what the model computed, more"
                f" than {RELATIVE_TOLERANCE:.0e}; do not use the file."
            )
    return differences


def open_files(files: Mapping[str, Path]) -> Run:
    """Opens the files of an exported model.

    Args:
      files: by the names of their programs.

    Raises:
      ConfigError: one is missing.
    """
    openers = {".onnx": open_onnx, ".stablehlo": open_stablehlo}
    opened = {}
    for program, file in files.items():
        if not file.is_file():
            raise ConfigError(f"{file}: is missing; export the model again.")
        opened[program] = openers[file.suffix](file)
    return lambda program, inputs: opened[program](inputs)


def _file_of(path: Path, program: ExportProgram, programs: Sequence[ExportProgram]) -> Path:
    if len(programs) == 1:
        return path
    return _several(path, program.name)


def _several(path: Path, program: str) -> Path:
    return path.with_name(f"{path.stem}.{program}{path.suffix}")


def _made_up(vocab_size: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, vocab_size, length).tolist() for length in (7, 3, 5)]
