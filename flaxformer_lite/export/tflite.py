"""LiteRT files (.tflite), by litert-converter: for phones and small boards."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
from jax import export

from flaxformer_lite.config import ConfigError
from flaxformer_lite.export.programs import ExportProgram
from flaxformer_lite.export.weights import StoredWeights, widened

LENGTH = 128  # the default number of tokens
SIGNATURE = "serving_default"
INSTALL = "install it with pip install 'flaxformer_lite[tflite]'"


def for_one_text(program: ExportProgram, length: int) -> ExportProgram:
    """Returns a program that reads one text of a fixed number of tokens.

    litert-converter 0.5 cannot convert the operations of symbolic sizes, and the accelerators of
    phones need fixed ones anyway. Shorter texts are padded.

    Args:
      program: the program for batches and lengths of any size.
      length: how many tokens.

    Raises:
      ConfigError: the program needs sizes that change from call to call.
    """
    if program.name == "decode" or len(program.inputs["input_ids"].shape) != 2:
        raise ConfigError(
            ".tflite files have fixed sizes, so that neither a cache that grows nor a number of"
            " choices fits; write .onnx or .stablehlo."
        )
    inputs = {
        name: jax.ShapeDtypeStruct((1, length), spec.dtype) for name, spec in program.inputs.items()
    }
    return dataclasses.replace(program, inputs=inputs, length=length)


def write_tflite(path: Path, program: ExportProgram, stored: StoredWeights) -> None:
    """Writes a program with its weights as a .tflite file with one signature, `serving_default`.

    Args:
      path: the file.
      program: the program, from `for_one_text`.
      stored: the weights, from `stored_as`; arithmetic is in float32.

    Raises:
      ConfigError: litert-converter is missing, or cannot convert an operation of the model.
    """
    converter = _needed("litert_converter.converter_api_ext")
    ir = _needed("litert_converter.mlir.ir")
    passes = _needed("litert_converter.mlir.passmanager")
    stablehlo = _needed("litert_converter.mlir.dialects.stablehlo")

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        outputs = program.function(widened(stored), dict(zip(program.inputs, arrays, strict=True)))
        return tuple(outputs[name] for name in program.outputs)

    exported = export.export(jax.jit(run), platforms=["cpu"])(*program.inputs.values())
    config = converter.ConvertToTFLConfig()
    config.canonicalizing_inf_as_min_max_float = False
    context = ir.Context()
    converter.prepare_mlir_context(context)
    try:
        with context, ir.Location.unknown(context):
            module = stablehlo.deserialize_portable_artifact(
                context, exported.mlir_module_serialized
            )
            converter.set_signature(
                module.operation,
                signature_name=SIGNATURE,
                input_names=list(program.inputs),
                output_names=list(program.outputs),
            )
            converter.run_convert_to_tfl_passes(module, passes.PassManager(), config)
            content = converter.export_flatbuffer_to_bytes(module.operation)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{path}: litert-converter cannot convert {program.name} of this model"
            f" ({_line(error)}); write .onnx or .stablehlo."
        ) from error
    path.write_bytes(content)


def open_tflite(path: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Opens a file by LiteRT, on the CPU; returns the function of its inputs.

    Raises:
      ConfigError: ai-edge-litert is missing, or cannot read the file; the function raises it where
        inputs do not fit.
    """
    runtime = _needed("ai_edge_litert.interpreter")
    try:
        interpreter = runtime.Interpreter(model_path=str(path))
        signature = interpreter.get_signature_runner(SIGNATURE)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"{path}: LiteRT cannot read it ({_line(error)}).") from error
    specs = signature.get_input_details()

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        named = {}
        for name, spec in specs.items():
            shape = tuple(spec["shape"].tolist())
            if name not in inputs or inputs[name].shape != shape:
                raise ConfigError(f"{path}: needs the input {name} of shape {shape}.")
            named[name] = inputs[name].astype(spec["dtype"])
        try:
            outputs: dict[str, np.ndarray] = signature(**named)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"{path}: LiteRT stops ({_line(error)}).") from error
        return outputs

    return run


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def _needed(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("_", "-")
        raise ConfigError(
            f"{package} is not installed: .tflite files need it; {INSTALL}."
        ) from error
