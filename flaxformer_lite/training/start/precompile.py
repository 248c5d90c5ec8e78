"""Steps that compile while the state is made or read, instead of after it; a state that is made while they are traced."""

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
    """A jitted function that is traced at once and compiles in the background; a call waits until it has."""

    def __init__(self, background: Executor, function: Any, *shapes: Any):
        lowered = function.lower(*shapes)  # here: two threads that trace hold each other up (a state mostly runs)
        self._compiling = background.submit(lowered.compile)

    def __call__(self, *args: Any) -> Any:
        return self._compiled(*args)

    @functools.cached_property
    def _compiled(self) -> Callable:
        compiled = self._compiling.result()
        environment.release_free_memory()  # before the step takes as much for itself
        return compiled


@contextlib.contextmanager
def precompile(program: AnyProgram, *names: str) -> Iterator[AnyProgram]:
    """The program with steps that compile from now on, until the block ends: what is not being compiled by then never is.

    Args:
      program: with mesh.mode=pmap, whose compiled form cannot be called by itself, it stays as it is.
      *names: of the steps, `eval_step` and `train_step`, in the order in which they will be needed.
    """
    if program.cfg.mesh.mode == "pmap":
        yield program
        return
    shapes = {"eval_step": (program.target.params, program.batch), "train_step": (program.target, program.batch)}
    with _thread() as background:  # one step after the other: XLA takes all cores for each
        steps: Any = {name: BackgroundCompiled(background, getattr(program, name), *shapes[name]) for name in names}
        yield dataclasses.replace(program, **steps)


@contextlib.contextmanager
def making(make: Callable[[], Made]) -> Iterator[Callable[[], Made]]:
    """A function, to be called once, that gives what `make` returns; a thread begins to make it at once.

    Most of the making of a state runs without Python's lock, beside the tracing of the steps.
    """
    with _thread() as beside:
        made = [beside.submit(make)]
        yield lambda: made.pop().result()  # popped, so that nothing here holds the state's memory


@contextlib.contextmanager
def _thread() -> Iterator[Executor]:
    executor = ThreadPoolExecutor(1)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
