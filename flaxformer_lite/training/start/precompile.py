"""Compiles the steps in the background while the state is built, and builds the state while they are traced."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from flaxformer_lite.runtime import environment
from flaxformer_lite.training.program import Program

AnyProgram = TypeVar("AnyProgram", bound=Program)
Made = TypeVar("Made")


class BackgroundCompiled:
    """A jitted function that is traced at once and compiled in the background; a call waits for the compilation."""

    def __init__(self, background: Executor, function: Any, *shapes: Any):
        # Traced here: two threads that trace slow each other down (making a state mostly runs).
        self._compiling = background.submit(function.lower(*shapes).compile)

    def __call__(self, *args: Any) -> Any:
        return self._compiled(*args)

    @functools.cached_property
    def _compiled(self) -> Callable:
        compiled = self._compiling.result()
        environment.release_free_memory()  # before the step takes as much
        return compiled


@contextlib.contextmanager
def precompile(program: AnyProgram, *names: str) -> Iterator[AnyProgram]:
    """Compiles steps of a program in the background; those still queued when the block ends are never compiled.

    Args:
      program: the program; unchanged with mesh.mode=pmap, which does not allow calling the compiled form.
      *names: `eval_step` and `train_step`, in the order in which they will be needed.
    """
    if program.cfg.mesh.mode == "pmap":
        yield program
        return
    shapes = {"eval_step": (program.target.params, program.batch), "train_step": (program.target, program.batch)}
    with _thread() as background:  # one step at a time: XLA uses all cores for each
        steps: Any = {name: BackgroundCompiled(background, getattr(program, name), *shapes[name]) for name in names}
        yield dataclasses.replace(program, **steps)


@contextlib.contextmanager
def making(make: Callable[[], Made]) -> Iterator[Callable[[], Made]]:
    """Starts `make` in a thread at once, and yields a function that returns its result, to be called once.

    Making a state mostly runs without Python's lock, in parallel with the tracing of the steps.
    """
    with _thread() as beside:
        made = [beside.submit(make)]
        yield lambda: made.pop().result()  # popped, so that no reference here keeps the state's memory


@contextlib.contextmanager
def _thread() -> Iterator[Executor]:
    executor = ThreadPoolExecutor(1)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
