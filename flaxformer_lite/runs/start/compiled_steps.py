"""Compiles the steps in the background while the state is created.

The state is created in the background while the steps are traced.
"""

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax
from jax.stages import Compiled, Lowered

from flaxformer_lite.analysis import hlo
from flaxformer_lite.objectives.rows import packed_shape
from flaxformer_lite.runtime import environment
from flaxformer_lite.runtime.processes import ALONE, Processes
from flaxformer_lite.training.program import Program
from flaxformer_lite.types import Batch

AnyProgram = TypeVar("AnyProgram", bound=Program)
Made = TypeVar("Made")
Waiting = Callable[[str], contextlib.AbstractContextManager]


class BackgroundStep:
    """A step that is compiled in the background, for each shape of batches; a call waits for its.

    Args:
      submit: starts compiling the step for a batch of given shapes, traced already or not.
      name: of the step.
      group: the processes, which check before the first call that they run the same program.
      waiting: returns the context in which a call waits.
    """

    def __init__(
        self, submit: Callable[..., Future[Compiled]], name: str, group: Processes, waiting: Waiting
    ):
        self._submit = submit
        self._name = name
        self._group = group
        self._waiting = waiting
        self._compiling: dict[tuple[int, ...], Future[Compiled]] = {}
        self._compiled: dict[tuple[int, ...], Compiled] = {}

    def begin(self, batch: Batch, *traced: Lowered) -> None:
        """Starts compiling for a batch of given shapes."""
        self._compiling[packed_shape(batch)] = self._submit(batch, *traced)

    def __call__(self, state: object, batch: Batch) -> Any:
        shape = packed_shape(batch)
        if shape not in self._compiled:
            self._compiled[shape] = self._finish(shape, batch)
        return self._compiled[shape](state, batch)

    def _finish(self, shape: tuple[int, ...], batch: Batch) -> Compiled:
        if shape not in self._compiling:  # rare: a batch that fits no shape is computed as it is
            self.begin(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch))
        with self._waiting("compile"):
            compiled = self._compiling[shape].result()
        _check_same(self._group, "-".join([self._name, *map(str, shape)]), compiled)
        environment.release_free_memory()  # before the step takes as much
        return compiled


@contextlib.contextmanager
def precompile(
    program: AnyProgram,
    *names: str,
    group: Processes = ALONE,
    waiting: Waiting = contextlib.nullcontext,
) -> Iterator[AnyProgram]:
    """Compiles steps of a program in the background.

    Steps still queued when the block ends are never compiled.

    Args:
      program: the program; unchanged with mesh.mode=pmap, whose compiled form cannot be called.
      *names: `eval_step` and `train_step`, in the order in which they will be needed.
      group: the processes, which check before a step's first call that they run the same one.
      waiting: returns the context in which a call waits for the compiler, given "compile".
    """
    if program.cfg.mesh.mode == "pmap":
        yield program
        return
    first = {"eval_step": program.target.params, "train_step": program.target}
    with _thread() as background:  # one step at a time: XLA uses all cores for each

        def submit(name: str, batch: Batch, traced: Lowered | None = None) -> Future[Compiled]:
            def compiled() -> Compiled:
                lowered = traced or getattr(program, name).lower(first[name], batch)
                return lowered.compile()

            return background.submit(compiled)

        steps: Any = {}
        for name in names:
            steps[name] = BackgroundStep(functools.partial(submit, name), name, group, waiting)
            batch = program.shapes(name)[0]
            # Traced here, as two threads that trace slow each other down.
            steps[name].begin(batch, getattr(program, name).lower(first[name], batch))
        for name in names:
            for batch in program.shapes(name)[1:]:
                steps[name].begin(batch)
        yield dataclasses.replace(program, **steps)


def _check_same(group: Processes, name: str, compiled: Compiled) -> None:
    """Checks that all processes compiled the same collectives in the same order.

    Otherwise they would hang, or mix up arrays.
    """
    if group.alone:
        return
    collectives = hlo.collectives(hlo.parse(compiled.as_text() or ""))
    compared = [each._replace(source="", beside=()) for each in collectives]
    digest = hashlib.sha256(repr(compared).encode()).hexdigest()[:12]
    fact = f"{name} as compiled (by jaxlib, XLA_FLAGS and drivers), its exchanges between devices"
    group.agree(name, {fact: digest})


@contextlib.contextmanager
def run_in_thread(make: Callable[[], Made]) -> Iterator[Callable[[], Made]]:
    """Starts `make` in a thread; yields a function that returns its result, and may be called once.

    Creating a state runs mostly without the GIL, in parallel with the tracing of the steps.
    """
    with _thread() as executor:
        made = [executor.submit(make)]
        # popped, so that no reference here keeps the state's memory
        yield (lambda: made.pop().result())


@contextlib.contextmanager
def _thread() -> Iterator[Executor]:
    executor = ThreadPoolExecutor(1)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
