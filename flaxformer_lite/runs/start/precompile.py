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


class BackgroundCompiled:
    """A jitted function that is compiled in the background; a call waits for the compilation."""

    def __init__(
        self, compiling: Future[Compiled], waiting: Waiting, check: Callable[[Compiled], None]
    ):
        self._compiling = compiling
        self._waiting = waiting
        self._check = check

    def __call__(self, *args: object) -> Any:
        return self._compiled(*args)

    @functools.cached_property
    def _compiled(self) -> Compiled:
        with self._waiting("compile"):
            compiled = self._compiling.result()
        self._check(compiled)
        environment.release_free_memory()  # before the step takes as much
        return compiled


class CompiledByShape:
    """A step that is compiled in the background for batches of several shapes.

    Args:
      begin: starts compiling the step for a batch of given shapes.
      compiled: the steps that are being compiled, by `packed_shape` their batches.
    """

    def __init__(
        self,
        begin: Callable[[Batch], BackgroundCompiled],
        compiled: dict[tuple[int, ...], BackgroundCompiled],
    ):
        self._begin = begin
        self._compiled = compiled

    def __call__(self, state: object, batch: Batch) -> Any:
        shape = packed_shape(batch)
        if shape not in self._compiled:  # rare: a batch that fits no shape is computed as it is
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
            self._compiled[shape] = self._begin(shapes)
        return self._compiled[shape](state, batch)


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

        def begin(name: str, batch: Batch, lowered: Lowered | None = None) -> BackgroundCompiled:
            shape = packed_shape(batch)
            title = "-".join([name, *map(str, shape)])

            def compiled() -> Compiled:
                made = lowered or getattr(program, name).lower(first[name], batch)
                return made.compile()

            return BackgroundCompiled(
                background.submit(compiled), waiting, functools.partial(_check_same, group, title)
            )

        steps: Any = {}
        for name in names:
            batch = program.shapes(name)[0]
            # Traced here, as two threads that trace slow each other down.
            lowered = getattr(program, name).lower(first[name], batch)
            steps[name] = begin(name, batch, lowered)
        for name in names:
            batches = program.shapes(name)
            if name in program.packed:
                compiled = {packed_shape(batches[0]): steps[name]}
                compiled |= {packed_shape(batch): begin(name, batch) for batch in batches[1:]}
                again = functools.partial(begin, name)
                steps[name] = CompiledByShape(again, compiled)
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
def making(make: Callable[[], Made]) -> Iterator[Callable[[], Made]]:
    """Starts `make` in a thread; yields a function that returns its result, and may be called once.

    Creating a state runs mostly without the GIL, in parallel with the tracing of the steps.
    """
    with _thread() as beside:
        made = [beside.submit(make)]
        # popped, so that no reference here keeps the state's memory
        yield (lambda: made.pop().result())


@contextlib.contextmanager
def _thread() -> Iterator[Executor]:
    executor = ThreadPoolExecutor(1)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
