"""Steps that are compiled at their first call, and compared among the processes of a run."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

from jax.stages import Compiled

from flaxformer_lite import sharding
from flaxformer_lite.analysis import hlo
from flaxformer_lite.objectives.rows import packed_shape
from flaxformer_lite.runtime import environment
from flaxformer_lite.runtime.processes import ALONE, Processes
from flaxformer_lite.training.program import Program
from flaxformer_lite.types import Batch

Waiting = Callable[[str], contextlib.AbstractContextManager]


class CompiledStep:
    """A step that is compiled for each shape of batches when a batch first has it.

    Args:
      step: the jitted step.
      name: of the step.
      group: the processes, which check before the first call that they run the same program.
      waiting: returns the context in which a call waits for the compiler, given "compile".
    """

    def __init__(self, step: sharding.Jitted, name: str, group: Processes, waiting: Waiting):
        self._step = step
        self._name = name
        self._group = group
        self._waiting = waiting
        self._compiled: dict[tuple[int, ...], Compiled] = {}

    def __call__(self, state: object, batch: Batch) -> Any:
        shape = packed_shape(batch)
        if shape not in self._compiled:
            with self._waiting("compile"):
                compiled = self._step.lower(state, batch).compile()
            _check_same(self._group, "-".join([self._name, *map(str, shape)]), compiled)
            environment.release_free_memory()  # before the step takes as much
            self._compiled[shape] = compiled
        return self._compiled[shape](state, batch)


def compile_when_called(
    program: Program, group: Processes = ALONE, waiting: Waiting = contextlib.nullcontext
) -> Program:
    """Returns the program with its steps as CompiledStep.

    It is unchanged with mesh.mode=pmap, whose compiled form cannot be called.
    """
    if program.cfg.mesh.mode == "pmap":
        return program
    steps: Any = {}
    for name in ("train_step", "eval_step"):
        steps[name] = CompiledStep(getattr(program, name), name, group, waiting)
    return dataclasses.replace(program, **steps)


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
