"""StableHLO files, by jax.export: one for CPUs, GPUs and TPUs, which jax alone reads."""

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np
from jax import export

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export.programs import ExportProgram
from flaxformer_lite.contrib.export.weights import StoredWeights, widen_weights

PLATFORMS = ("cpu", "cuda", "tpu")


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

    exported = export.export(jax.jit(run), platforms=PLATFORMS)(**program.inputs)
    try:
        path.write_bytes(exported.serialize())
    except ImportError as error:
        raise ConfigError(
            "flatbuffers is not installed: .stablehlo files need it; install it with pip install"
            " 'flaxformer_lite[export]'."
        ) from error


def open_stablehlo(path: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Opens a file by jax; returns the function of its inputs.

    Raises:
      ConfigError: jax cannot read the file; the function raises it where inputs do not fit.
    """
    try:
        exported = export.deserialize(bytearray(path.read_bytes()))
    except Exception as error:  # flatbuffers checks nothing, and raises whatever its reads raise
        raise ConfigError(f"{path}: is no program of jax.export ({error}).") from error

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            outputs = exported.call(**inputs)
        except (TypeError, ValueError, jax.errors.JaxRuntimeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"{path}: cannot be run, or its inputs do not fit ({first})."
            ) from error
        return {name: np.asarray(x) for name, x in outputs.items()}

    return run
