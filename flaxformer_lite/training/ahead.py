"""Steps that compile while the state is made or read, instead of after it."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from flaxformer_lite import machine
from flaxformer_lite.training.program import Program

AnyProgram = TypeVar("AnyProgram", bound=Program)


class Ahead:
    """A jitted function that is traced at once and compiles in the background; a call waits until it has."""

    def __init__(self, background: Executor, function: Callable, *shapes: Any):
        lowered = function.lower(*shapes)  # here: two threads that trace hold each other up
        self._compiling = background.submit(lowered.compile)

    def __call__(self, *args: Any) -> Any:
        return self._compiled(*args)

    @functools.cached_property
    def _compiled(self) -> Callable:
        compiled = self._compiling.result()
        machine.give_back()  # before the step takes as much for itself
        return compiled


@contextlib.contextmanager
def compiling(program: AnyProgram, *names: str) -> Iterator[AnyProgram]:
    """The program with steps that compile from now on, until the block ends: what is not being compiled by then never is.

    Args:
      program: with mesh.mode=pmap, whose compiled form cannot be called by itself, it stays as it is.
      *names: of the steps, `eval_step` and `train_step`, in the order in which they will be needed.
    """
    if program.cfg.mesh.mode == "pmap":
        yield program
        return
    shapes = {"eval_step": (program.target.params, program.batch), "train_step": (program.target, program.batch)}
    background = ThreadPoolExecutor(1)  # one after the other: XLA compiles each on all cores
    try:
        yield dataclasses.replace(program, **{n: Ahead(background, getattr(program, n), *shapes[n]) for n in names})
    finally:
        background.shutdown(wait=False, cancel_futures=True)
