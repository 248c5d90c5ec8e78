"""Inputs of exported programs with what they must compute, to check a file wherever it runs."""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export.programs import ExportProgram
from flaxformer_lite.types import Params

Inputs = Mapping[str, np.ndarray]
Run = Callable[[str, Inputs], dict[str, np.ndarray]]  # (name of a program, inputs) -> outputs
RELATIVE_TOLERANCE = 1e-4  # of the largest value, in float32
PROGRAMS = ("encode", "decode", "embed")
MOST_COMPRESSED = 200  # times; arrays of a model compress 10 times at most, and zeros 1,000
PAST = "past_key_values."
SOURCE = "source_key_values."


class Case(NamedTuple):
    """One call of a program.

    Attributes:
      program: its name.
      inputs, outputs: the arrays by name.
    """

    program: str
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def make_cases(
    programs: Sequence[ExportProgram],
    params: Params,
    rows: Sequence[Sequence[int]],
    *,
    start: int = 0,
) -> list[Case]:
    """Computes the cases of a model's programs: of several rows and of one, of a step after them.

    Args:
      programs: all programs of the model.
      params: its parameters, as the file has them.
      rows: ids of texts of different lengths, at least one each.
      start: the first token of an encoder-decoder's target.
    """
    by_name = {program.name: program for program in programs}
    cases = []
    for chosen in (rows, rows[:1]):
        encoded = None
        if "encode" in by_name or "embed" in by_name:
            program = programs[0]
            encoded = _case(program, params, pad_texts(program, chosen))
            cases.append(encoded)
        if "decode" in by_name:
            program = by_name["decode"]
            inputs = first_call(program, chosen, encoded, start)
            cases.append(_case(program, params, inputs))
            cases.append(_case(program, params, next_call(program, cases[-1])))
    return cases


def _case(program: ExportProgram, params: Params, inputs: dict[str, np.ndarray]) -> Case:
    outputs = jax.jit(program.function)(params, inputs)
    return Case(program.name, inputs, {name: np.asarray(x) for name, x in outputs.items()})


def pad_texts(program: ExportProgram, rows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Returns the inputs of texts, padded at their ends."""
    length = max(len(row) for row in rows)
    inputs = {name: np.zeros((len(rows), length), np.int32) for name in program.inputs}
    for number, row in enumerate(rows):
        inputs["input_ids"][number, : len(row)] = row
        inputs["attention_mask"][number, : len(row)] = 1
    if len(program.inputs["input_ids"].shape) == 3:  # the choices of a question
        return {name: np.stack([x, x[::-1]], axis=1) for name, x in inputs.items()}
    return inputs


def first_call(
    program: ExportProgram, rows: Sequence[Sequence[int]], encoded: Case | None, start: int
) -> dict[str, np.ndarray]:
    """Returns the inputs of a decoder that has read nothing yet; texts are padded in front."""
    if encoded is not None:
        inputs = {name: x for name, x in encoded.outputs.items() if name.startswith(SOURCE)}
        inputs["encoder_attention_mask"] = encoded.inputs["attention_mask"]
        inputs["input_ids"] = np.full((len(rows), 1), start, np.int32)
    else:
        length = max(len(row) for row in rows)
        inputs = {}
        for name in ("input_ids", "attention_mask"):
            inputs[name] = np.zeros((len(rows), length), np.int32)
        for number, row in enumerate(rows):
            inputs["input_ids"][number, length - len(row) :] = row
            inputs["attention_mask"][number, length - len(row) :] = 1
    for name, spec in program.inputs.items():
        if name.startswith(PAST):
            sizes = []
            for size in spec.shape[1:]:
                if not isinstance(size, int):
                    size = 0  # the symbolic length of a cache, which is empty
                sizes.append(size)
            inputs[name] = np.zeros((len(rows), *sizes), spec.dtype)
    return inputs


def next_call(program: ExportProgram, before: Case) -> dict[str, np.ndarray]:
    """Returns the inputs that continue a call with the likeliest token."""
    inputs = dict(before.inputs)
    inputs["input_ids"] = before.outputs["logits"][:, -1:].argmax(-1).astype(np.int32)
    if "attention_mask" in inputs:
        inputs["attention_mask"] = np.pad(
            inputs["attention_mask"], ((0, 0), (0, 1)), constant_values=1
        )
    for name in program.inputs:
        if name.startswith(PAST):
            inputs[name] = before.outputs[name.replace(PAST, "present.")]
    return inputs


def save_cases(path: Path, cases: Sequence[Case]) -> None:
    """Writes cases as .npz, with keys like `0/encode/input/input_ids`."""
    arrays: dict[str, Any] = {}
    for number, case in enumerate(cases):
        for kind, named in (("input", case.inputs), ("output", case.outputs)):
            for name, x in named.items():
                arrays[f"{number}/{case.program}/{kind}/{name}"] = x
    np.savez_compressed(path, **arrays)


def load_cases(path: Path) -> list[Case]:
    """Reads what `save_cases` wrote.

    Raises:
      ConfigError: there is no such file, or it holds something else.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: is missing; it is written beside an exported file.")
    cases: dict[str, Case] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_COMPRESSED * path.stat().st_size:
            raise ValueError(f"{size} bytes are compressed {MOST_COMPRESSED} times or more")
        with path.open("rb") as file, np.load(file) as arrays:
            for key in arrays.files:
                number, program, kind, name = key.split("/", 3)
                if program not in PROGRAMS:
                    raise ValueError(f"no program is called {program[:40]}")
                case = cases.setdefault(number, Case(program, {}, {}))
                fields = {"input": case.inputs, "output": case.outputs}
                fields[kind][name] = arrays[key]
    except (ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{path}: holds no test cases of an export ({error}); export the model again."
        ) from error
    if not any(case.outputs for case in cases.values()):
        raise ConfigError(f"{path}: holds no outputs; export the model again.")
    return list(cases.values())


def largest_difference(cases: Sequence[Case], run: Run) -> dict[str, float]:
    """Returns the largest difference of each program's outputs from its cases.

    Differences are relative to the largest output where that is above one; NaN counts as infinite,
    except where the case has NaN too.

    Args:
      cases: the cases.
      run: (name of a program, inputs) -> outputs.

    Raises:
      ConfigError: an output is missing, or has another shape.
    """
    worst: dict[str, float] = {}
    for case in cases:
        outputs = run(case.program, case.inputs)
        for name, expected in case.outputs.items():
            if name not in outputs or outputs[name].shape != expected.shape:
                shape = outputs[name].shape if name in outputs else "missing"
                raise ConfigError(
                    f"{case.program}: the output {name} must have shape {expected.shape}, as its"
                    f" test case has, and is {shape}; file and cases do not belong together."
                )
            scale = max(1.0, float(np.nanmax(np.abs(expected), initial=0.0)))
            both_nan = np.isnan(expected) & np.isnan(outputs[name])
            off = np.where(both_nan, 0.0, np.abs(outputs[name] - expected))
            largest = float(np.max(np.where(np.isnan(off), np.inf, off), initial=0.0)) / scale
            worst[case.program] = max(worst.get(case.program, 0.0), largest)
    return worst
