"""The names of other libraries that are not public, each with the reason why it is used.

No other file may use one, which `make lint` checks. tests/test_private_names.py fails once a
library offers a public replacement. Each is imported inside its function: some callers start
without JAX.
"""

import argparse
import contextlib
import importlib
import itertools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol

# coordinator, number of processes, process id and local devices, each None where unknown
Cluster = tuple[str | None, int | None, int | None, int | Sequence[int] | None]


class KeyValueStore(Protocol):
    """The store that processes share, as far as runtime/processes.py uses it."""

    def key_value_set(self, key: str, value: str) -> None: ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...


def coordination_service() -> KeyValueStore | None:
    """Returns the client of jax.distributed's key-value store, or None if there is one process.

    Processes agree through it before the first device is used and while a device waits for a dead
    process; `jax.experimental.multihost_utils` communicates through devices. Orbax uses the same
    name.
    """
    from jax._src import distributed

    return distributed.global_state.client


def process_id() -> int:
    """Returns the number of this process, which is 0 before jax.distributed is initialized.

    `jax.process_index` would start the devices, too early for a message about how they start.
    """
    from jax._src import distributed

    return distributed.global_state.process_id


def detect_cluster(coordinator: str | None, timeout: int) -> Cluster:
    """Returns the coordinator, number of processes, process id and local devices of a cluster.

    `jax.distributed.initialize` detects them too, but starts at once: then a single process of
    Slurm would start a service for nobody, and no error could name the process and its coordinator.
    """
    from jax._src import clusters

    return clusters.ClusterEnv.auto_detect_unset_distributed_params(
        coordinator, None, None, None, None, timeout
    )


def primitive_rules() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Returns the modules in which a primitive of JAX gets its rules: `ad`, `batching`, `mlir`.

    `jax.custom_vjp` refuses forward mode, and `jax.custom_derivatives.linear_call` derivatives by
    residuals. jax.interpreters has no underscore; JAX's tutorial on primitives uses it, and its
    reference leaves it out.
    """
    from jax.interpreters import ad, batching, mlir

    return ad, batching, mlir


def flags(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Returns the flags and positional arguments of a parser, which has no public list of them.

    Programs that complete command lines (argcomplete, shtab) use the same name.
    """
    return parser._actions


@contextlib.contextmanager
def newest_nodes_first() -> Iterator[None]:
    """Lets jax2onnx look for the node of each new result from the last node of the graph.

    jax2onnx 0.17 checks that every result belongs to the graph, and reads all nodes from the first,
    so that this part grows with the square of a model's depth: a third of the time at 4 layers.
    """
    binding: Any = importlib.import_module("jax2onnx.converter.output_binding")
    matches = binding._value_matches_reference
    before = binding._value_is_graph_connected

    def is_connected(ctx: Any, value: object) -> bool:
        builder = ctx.builder
        for node in reversed(builder.nodes):
            if any(matches(output, value) for output in node.outputs):
                return True
        others = itertools.chain(builder.inputs, builder.initializers)
        return any(matches(other, value) for other in others)

    binding._value_is_graph_connected = is_connected
    try:
        yield
    finally:
        binding._value_is_graph_connected = before


@contextlib.contextmanager
def without_removal_of_casts() -> Iterator[None]:
    """Leaves out the two passes of jax2onnx that remove casts, as onnxruntime removes them itself.

    In 0.17 they read all nodes for each cast, and begin again after each that they remove: 34 of
    73 CPU s for a Llama of 16 thin layers.
    """
    optimizations: Any = importlib.import_module("jax2onnx.converter.ir_optimizations")
    before = optimizations._OPTIMIZER_PASSES
    optimizations._OPTIMIZER_PASSES = tuple(
        each for each in before if not each.name.startswith("remove_redundant_casts")
    )
    try:
        yield
    finally:
        optimizations._OPTIMIZER_PASSES = before


def compiler() -> ModuleType:
    """Returns the module in which tests/programs.py compiles equal programs once.

    JAX's own cache is of files, and reading one takes as long as compiling a test's tiny program.
    """
    from jax._src import compiler

    return compiler


def mlir() -> ModuleType:
    """Returns the module in which tests/programs.py lowers many programs in one context."""
    from jax._src.interpreters import mlir

    return mlir
