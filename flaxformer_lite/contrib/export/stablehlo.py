"""StableHLO files, by jax.export: one for CPUs, GPUs and TPUs, which jax alone reads."""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import export

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export.programs import Arrays, ExportProgram
from flaxformer_lite.contrib.export.weights import StoredWeights, widen_weights
from flaxformer_lite.types import Params

PLATFORMS = ("cpu", "cuda", "tpu")
PARAMS = "params.npz"  # beside a file with gradients


def write_stablehlo(path: Path, program: ExportProgram, stored: StoredWeights) -> None:
    """Writes a program with its weights; `jax.export.deserialize(bytes).call(**inputs)` runs it.

    Args:
      path: the file.
      program: the program; sizes that are symbols stay free.
      stored: the weights, from `stored_as`; arithmetic is in float32.

    Raises:
      ConfigError: flatbuffers is missing.
    """

    def run(**arrays: jax.Array) -> dict[str, jax.Array]:
        return program.function(widen_weights(stored), arrays)

    _save(path, export.export(jax.jit(run), platforms=PLATFORMS)(**program.inputs), vjp_order=0)


def write_differentiable(path: Path, program: ExportProgram, params: Params) -> None:
    """Writes a program of weights and inputs, with its gradient, and the weights as params.npz.

    `jax.export.deserialize(bytes).call(weights, inputs)` runs it, and `jax.grad` differentiates it
    by the weights, which are a dict by path.

    Args:
      path: the file.
      program: the program; sizes that are symbols stay free.
      params: the weights, which are written in float32.

    Raises:
      ConfigError: flatbuffers is missing.
    """
    flat: dict[str, jax.Array] = flatten_dict(params, sep="/")
    weights: dict[str, Any] = {name: np.asarray(x, np.float32) for name, x in flat.items()}

    def run(weights: dict[str, jax.Array], arrays: Arrays) -> dict[str, jax.Array]:
        return program.function(unflatten_dict(weights, sep="/"), arrays)

    specs = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in weights.items()}
    exported = export.export(jax.jit(run), platforms=PLATFORMS)(specs, program.inputs)
    _save(path, exported, vjp_order=1)
    np.savez(path.with_name(PARAMS), **weights)


def _save(path: Path, exported: export.Exported, *, vjp_order: int) -> None:
    try:
        path.write_bytes(exported.serialize(vjp_order=vjp_order))
    except ImportError as error:
        raise ConfigError(
            "flatbuffers is not installed: .stablehlo files need it; install it with pip install"
            " 'flaxformer_lite[export]'."
        ) from error


def open_stablehlo(path: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Opens a file by jax; returns the function of its inputs.

    Raises:
      ConfigError: jax cannot read the file or its weights; the function raises it where inputs do
        not fit.
    """
    try:
        exported = export.deserialize(bytearray(path.read_bytes()))
    except Exception as error:  # flatbuffers checks nothing, and raises whatever its reads raise
        raise ConfigError(f"{path}: is no program of jax.export ({error}).") from error
    weights = _read_weights(path.with_name(PARAMS)) if exported.has_vjp() else None

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs: Arrays
        try:
            if weights is None:
                outputs = exported.call(**inputs)
            else:
                outputs = exported.call(weights, dict(inputs))
        except (TypeError, ValueError, jax.errors.JaxRuntimeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"{path}: cannot be run, or its inputs do not fit ({first})."
            ) from error
        return {name: np.asarray(x) for name, x in outputs.items()}

    return run


def _read_weights(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{path}: has no weights ({error}), which a file with gradients needs beside it; export"
            " the model again."
        ) from error
