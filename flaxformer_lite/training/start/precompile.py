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


class BackgroundCompiled:
    """A jitted function that is traced at once and compiles in the background; a call waits until it has."""

    def __init__(self, background: Executor, function: Callable, *shapes: Any):
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
def precompile(program: AnyProgram, *names: str, fresh: bool = False) -> Iterator[AnyProgram]:
    """The program with steps that compile from now on, until the block ends: what is not being compiled by then never is.

    Args:
      program: with mesh.mode=pmap, whose compiled form cannot be called by itself, it stays as it is.
      *names: of the steps, `eval_step` and `train_step`, in the order in which they will be needed.
      fresh: whether `fresh_state` will be called; it then begins at once, as most of it runs without Python's lock.
    """
    if program.cfg.mesh.mode == "pmap":
        yield program
        return
    shapes = {"eval_step": (program.target.params, program.batch), "train_step": (program.target, program.batch)}
    background, beside = (
        ThreadPoolExecutor(1),
        ThreadPoolExecutor(1),
    )  # one step after the other: XLA takes all cores for each
    made = [beside.submit(program.fresh_state)] if fresh else []
    try:
        steps = {name: BackgroundCompiled(background, getattr(program, name), *shapes[name]) for name in names}
        # Popped, so that nothing here holds the state's memory; who asks again gets another.
        yield dataclasses.replace(
            program, **steps, fresh_state=lambda: made.pop().result() if made else program.fresh_state()
        )
    finally:
        for executor in (background, beside):
            executor.shutdown(wait=False, cancel_futures=True)
