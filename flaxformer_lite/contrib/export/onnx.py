"""ONNX files, by jax2onnx: for onnxruntime on servers, phones and in browsers."""

import contextlib
import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from flaxformer_lite import private_names
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export.programs import ExportProgram
from flaxformer_lite.contrib.export.weights import StoredWeights, widen_weights

if TYPE_CHECKING:
    import onnx

MOST_BYTES = 1_800_000_000  # of one file, as protobuf ends at 2 GiB
INSTALL = "install them with pip install 'flaxformer_lite[export]'"
INT64 = {"int32": "int64"}  # as all other exporters have ids


def write_onnx(
    path: Path,
    program: ExportProgram,
    stored: StoredWeights,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a program with its weights as an .onnx file, in which ids are int64 as elsewhere.

    Args:
      path: the file. Weights over 1.8 GB are in a second one beside it, which ends in `.data`.
      program: the program; sizes that are symbols stay free.
      stored: the weights, from `stored_as`; arithmetic is in float32.
      metadata: texts by name, for the file's metadata_props.

    Raises:
      ConfigError: jax2onnx is missing, or cannot convert an operation of the model.
    """
    onnx = _needed("onnx")
    jax2onnx = _needed("jax2onnx")
    specs = list(program.inputs.values())
    # Traced here, because jax2onnx replaces functions of jax.numpy by ones that refuse symbols.
    operations: Callable[..., Any] = jaxpr_as_fun(
        jax.jit(_positional(program, stored)).trace(*specs).jaxpr
    )
    try:
        with (
            _quiet(),
            private_names.newest_nodes_first(),
            private_names.without_removal_of_casts(),
        ):
            model = jax2onnx.to_onnx(
                lambda *arrays: tuple(operations(*arrays)),
                specs,
                model_name=program.name,
                input_names=list(program.inputs),
                output_names=list(program.outputs),
            )
    except (NotImplementedError, TypeError, ValueError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"{path}: jax2onnx cannot convert {program.name} of this model ({first}); write"
            " .stablehlo, or serve the folder that convert writes."
        ) from error
    _drop_unused(model.graph)
    _take_int64(onnx, model.graph)
    onnx.helper.set_model_props(model, dict(metadata or {}))
    if model.ByteSize() < MOST_BYTES:
        path.write_bytes(model.SerializeToString())
    else:
        onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data")


def open_onnx(path: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Opens a file by onnxruntime, on the CPU; returns the function of its inputs.

    Raises:
      ConfigError: onnxruntime is missing, or cannot read the file; the function raises it where
        inputs do not fit.
    """
    runtime = _needed("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what is fatal: errors are raised
    try:
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's own classes share no other base
        raise ConfigError(f"{path}: onnxruntime cannot read it ({_line(error)}).") from error
    specs = session.get_inputs()
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        named = {}
        for spec in specs:
            if spec.name not in inputs:
                raise ConfigError(f"{path}: needs the input {spec.name}, which is missing.")
            dtype = np.int64 if spec.type == "tensor(int64)" else np.float32
            named[spec.name] = inputs[spec.name].astype(dtype)
        try:
            return dict(zip(names, session.run(names, named), strict=True))
        except Exception as error:  # the library's own classes share no other base
            raise ConfigError(f"{path}: onnxruntime stops ({_line(error)}).") from error

    return run


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def _positional(
    program: ExportProgram, stored: StoredWeights
) -> Callable[..., tuple[jax.Array, ...]]:
    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        outputs = program.function(
            widen_weights(stored), dict(zip(program.inputs, arrays, strict=True))
        )
        return tuple(outputs[name] for name in program.outputs)

    return run


def _drop_unused(graph: "onnx.GraphProto") -> None:
    """Drops weights that no node reads: those of the decoder in a file that encodes."""
    read = _names_read(graph)
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _names_read(graph: "onnx.GraphProto") -> set[str]:
    names = {output.name for output in graph.output}
    for node in graph.node:
        names.update(node.input)
        for attribute in node.attribute:
            names |= _names_read(attribute.g)
    return names


def _take_int64(onnx: ModuleType, graph: "onnx.GraphProto") -> None:
    """Makes int32 inputs int64, cast at once."""
    casts = []
    for spec in graph.input:
        if spec.type.tensor_type.elem_type != onnx.TensorProto.INT32:
            continue
        narrow = f"{spec.name}_int32"
        for node in graph.node:
            for number, name in enumerate(node.input):
                if name == spec.name:
                    node.input[number] = narrow
        spec.type.tensor_type.elem_type = onnx.TensorProto.INT64
        casts.append(
            onnx.helper.make_node("Cast", [spec.name], [narrow], to=onnx.TensorProto.INT32)
        )
    for number, cast in enumerate(casts):
        graph.node.insert(number, cast)


def _needed(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{name} is not installed: .onnx files need it; {INSTALL}.") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides what jax2onnx and onnx_ir say about types that they leave open."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "jax2onnx")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
