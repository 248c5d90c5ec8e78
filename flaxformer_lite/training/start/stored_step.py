"""Compiled steps that several processes keep for their next start: all of them load what they kept,
or all compile.

JAX's own cache is written by process 0 alone, whose stored program would then run beside programs
just compiled.
"""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax.experimental import serialize_executable

from flaxformer_lite.files.publish import write_file
from flaxformer_lite.runtime.processes import Processes

NUMBER = 16  # bytes of a file before the program
DIGEST = 32


def load_or_compile(group: Processes, name: str, devices: Sequence[Any], lowered: Any) -> Any:
    """Loads a step if all processes have stored it in one and the same start; otherwise all compile
    it and store it.

    Args:
      group: the processes, all of which call this; a single one leaves storing to JAX.
      devices: those of the mesh, in its order.
      lowered: the step, as jax.jit lowers it.
    """
    if group.alone:
        return lowered.compile()
    path = (
        Path(jax.config.values["jax_compilation_cache_dir"])
        / f"{name}-{inputs(devices, lowered)}-{group.index}"
    )
    number = ""
    loaded = None
    with contextlib.suppress(Exception):  # absent, damaged, or no longer to JAX's liking
        content = path.read_bytes()
        start = content[:NUMBER]
        digest = content[NUMBER:][:DIGEST]
        program = content[NUMBER + DIGEST :]
        if hashlib.sha256(program).digest() == digest:
            trees = lowered.in_tree, lowered.out_tree
            loaded = serialize_executable.deserialize_and_load(
                program, *trees, execution_devices=devices
            )
            number = start.hex()
    new = group.coordinate(f"the stored {name}", number, decide)
    if not new:
        return loaded
    del loaded  # which takes memory of the devices
    compiled = lowered.compile()
    with contextlib.suppress(Exception):  # a full disk, or a program that JAX cannot store
        program = serialize_executable.serialize(compiled)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, bytes.fromhex(new) + hashlib.sha256(program).digest() + program)
    return compiled


def decide(numbers: Sequence[str]) -> str:
    """Returns the number under which all store what they now compile, "" if all have stored it
    under one number."""
    return "" if all(numbers) and len(set(numbers)) == 1 else secrets.token_hex(NUMBER)


def inputs(devices: Sequence[Any], lowered: Any) -> str:
    """Returns a hash of all that a compiled program depends on.

    The program's text names neither the compiler's options nor which of the arguments are used, and
    so passed to it.
    """
    versions = jax.__version__, jaxlib.__version__, devices[0].client.platform_version
    flags = [os.environ.get(name, "").strip() for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    if flags[0] and not flags[0].startswith("-"):  # XLA takes it for the name of a file of flags
        with contextlib.suppress(OSError):
            flags.append(Path(flags[0]).read_text())
    # A TPU is shown with its coordinates, which differ between slices of as many chips.
    places = [(repr(device), device.process_index, device.device_kind) for device in devices]
    lowering = lowered._lowering
    called = sorted(lowering.compile_args["kept_var_idx"]), lowering._compiler_options_kvs
    asked = repr(
        [lowered.as_text(), called, places, versions, flags, sorted(jax.config.values.items())]
    )
    return hashlib.sha256(asked.encode()).hexdigest()[:16]
