"""Compiles for tests only what has not been compiled before, and lowers programs in one place.

jax makes an MLIR context for each program, which takes longer than to lower an operation, and knows
programs by the functions that they are of: two runs of one size compile their weights' first values
twice. Both ways in are private, so either is left as it is where a version of jax has it no more.
"""

import functools
import hashlib
import inspect
import itertools
import os
import platform
import re
from pathlib import Path

import jax
import jaxlib
import numpy as np
from flax.core import meta, scope
from jax.extend.core import jaxpr_as_fun

from flaxformer_lite import private_names

LOWERINGS = 300  # in one context, which holds the constants of all
FOLDER = Path(__file__).parents[1] / ".pytest_cache" / "d" / "programs"
MOST = 1 << 30  # bytes of programs that are kept, those used last
# of an operation, such as jit(step)/add, which tests of a program's text read; frames have no slash
NAME = re.compile(r'loc\("([^"]+/[^"]+)"\(')
SIGNATURE = ["backend", "module", "executable_devices", "options", "host_callbacks"]


def share_contexts():
    """Lowers many programs in one MLIR context."""
    mlir = private_names.mlir()
    if make := getattr(mlir, "make_ir_context", None):
        counter = itertools.count()
        latest = functools.lru_cache(maxsize=1)(lambda number: make())
        mlir.make_ir_context = lambda: latest(next(counter) // LOWERINGS)


def share_executables():
    """Compiles two programs of the same text, devices and options once.

    To read what any worker of any earlier `make test` has compiled takes a tenth of the time.
    `pytest --cache-clear` deletes it.
    """
    compiler = private_names.compiler()
    compile_anew = getattr(compiler, "backend_compile_and_load", None)
    if not compile_anew or [*inspect.signature(compile_anew).parameters] != SIGNATURE:
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        delete_unused()

    def compile_once(backend, module, executable_devices, options, host_callbacks):
        if host_callbacks or backend is not jax.devices()[0].client:  # a compiler of other chips
            return compile_anew(backend, module, executable_devices, options, host_callbacks)
        path = FOLDER / key_of(module, executable_devices, options)
        if path.exists():
            path.touch()
            return backend.deserialize_executable(path.read_bytes(), executable_devices, options)
        executable = compile_anew(backend, module, executable_devices, options, host_callbacks)
        made = path.with_suffix(f".{os.getpid()}")  # another worker may read the path meanwhile
        made.write_bytes(backend.serialize_executable(executable))
        made.replace(path)
        return executable

    compiler.backend_compile_and_load = compile_once


def delete_unused():
    """Deletes the programs that were used longest ago, as those of code that has changed."""
    files = [(entry.stat(), entry.path) for entry in os.scandir(FOLDER)]
    files.sort(key=lambda file: file[0].st_mtime, reverse=True)
    kept = 0
    for stat, path in files:
        kept += stat.st_size
        if kept > MOST:
            Path(path).unlink(missing_ok=True)


def key_of(module, executable_devices, options):
    """Returns the name of a program's file: a hash of what it computes and is compiled for."""
    text = module.operation.get_asm(enable_debug_info=False)
    names = NAME.findall(module.operation.get_asm(enable_debug_info=True))
    parts = [text, *sorted(set(names)), str(executable_devices), *compiled_for()]
    key = hashlib.sha256("\n".join(parts).encode())
    key.update(options.SerializeAsString())
    return key.hexdigest()


@functools.cache
def compiled_for():
    """Lists what decides, beside a program, how it is compiled."""
    info = Path("/proc/cpuinfo")
    processor = platform.processor()
    if info.exists():
        lines = info.read_text().splitlines()
        processor = next((line for line in lines if line.startswith("flags")), processor)
    flags = sorted(set(os.environ["XLA_FLAGS"].split()))  # a worker has those of its parent, too
    return jaxlib.__version__, *flags, platform.machine(), processor


def init_at_once(create, shardings, compiler_options=None):
    """Computes `create` in one program, as init_per_leaf does in one for each leaf.

    Of a tiny model, this takes 0.6 user CPU seconds instead of 1.4.
    """
    leaves, tree = jax.tree.flatten(shardings)
    return jax.tree.unflatten(tree, jax.jit(jaxpr_as_fun(create), out_shardings=leaves)())


def trust_shapes():
    """Applies models to parameters without tracing what would initialize them.

    Flax does so for each parameter at each application, to compare its shape. Where the initializer
    is given the shape, that is compared; a parameter of another shape is left to flax to refuse.
    """
    param = scope.Scope.param

    def compared(self, name, init_fn, *init_args, unbox=True, **init_kwargs):
        if init_args and isinstance(init_args[0], tuple) and self.has_variable("params", name):
            value = self.get_variable("params", name)
            value = meta.unbox(value) if unbox else value
            if np.shape(value) == init_args[0]:
                self.reserve(name, "params")
                return value
        return param(self, name, init_fn, *init_args, unbox=unbox, **init_kwargs)

    scope.Scope.param = compared
