"""The initial train state: random or pretrained parameters, and a fresh optimizer state."""

import collections
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from flaxformer_lite.runs.experiment import FirstState
from flaxformer_lite.runs.start import warm_start
from flaxformer_lite.runs.start.referenced_weights import add_auxiliary
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.state import TrainState


def initial_state(program: Program, init_from: str = "") -> TrainState:
    """Creates the initial state, as `first_state` does."""
    return first_state(program, init_from).state


def first_state(program: Program, init_from: str = "") -> FirstState:
    """Creates the initial state, with each array on its devices from the start.

    Args:
      program: has the state's shapes and shardings.
      init_from: a directory of weights; empty for random ones.

    Raises:
      ConfigError: there are no such weights, or they belong to another model.
    """
    published = None
    omitted = set[int]()
    if init_from:
        published = warm_start.init_from_pretrained(program, init_from)
        for number, (keys, _) in enumerate(jax.tree_util.tree_leaves_with_path(program.target)):
            if path_of(keys).removeprefix("params/") in published.paths:
                omitted.add(number)
    shardings = jax.tree.map(lambda x: x.sharding, program.target)
    state = init_per_leaf(program.create, shardings, omitted)
    unchanged = frozenset[str]()
    if published:
        state = published.replace_params(state)
        unchanged = published.unchanged
    return FirstState(add_auxiliary(program, state), unchanged)


class LeafProgram(NamedTuple):
    """A program that computes some leaves.

    Its constants are arguments, so that leaves that differ only in these have the same program.
    """

    leaves: list[int]  # indices among the outputs
    program: ClosedJaxpr
    constants: list[np.ndarray]


def init_per_leaf(create: ClosedJaxpr, shardings: Any, omitted: Collection[int] = ()) -> Any:
    """Computes `create`, with each array on its devices from the start.

    Args:
      create: a jaxpr without arguments.
      shardings: tree of NamedShardings for its outputs.
      omitted: the numbers of the leaves that are not computed, and are None instead.
    """
    shardings, tree = jax.tree.flatten(shardings)

    def compile_alike(parts: list[LeafProgram]) -> Callable:
        leaves, program, constants = parts[0]
        jitted = jax.jit(jaxpr_as_fun(program), out_shardings=[shardings[i] for i in leaves])
        return jitted.lower(*constants).compile()

    alike = collections.defaultdict(list)
    made = dict[int, jax.Array]()
    for part in _parts(create, omitted):
        # Variables are printed by their order, so that equal programs have equal texts.
        alike[str(part.program), *(shardings[i] for i in part.leaves)].append(part)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:  # XLA compiles without the GIL
        programs = list(pool.map(compile_alike, alike.values()))
    for program, parts in zip(programs, alike.values(), strict=True):
        for part in parts:
            made.update(zip(part.leaves, program(*part.constants), strict=True))
    return jax.tree.unflatten(tree, [made.get(i) for i in range(len(shardings))])


def _parts(create: ClosedJaxpr, omitted: Collection[int]) -> list[LeafProgram]:
    """Splits a program into one per leaf that is not omitted; outputs of a scan stay together."""
    jaxpr = create.jaxpr
    source = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    together = collections.defaultdict[object, list[int]](list)
    for i, out in enumerate(jaxpr.outvars):
        if i in omitted:
            continue
        equations = _needed([out], source)
        scans = [id(eqn) for eqn in equations if len(eqn.outvars) > 1]
        if scans:
            together[scans[-1]].append(i)
        else:
            together[i,].append(i)

    def part(leaves):
        constants = []
        arguments = []

        def as_argument(var: Var | Literal) -> Var:
            if not isinstance(var, Literal):
                return var
            aval: Any = var.aval  # of an array, so it has a dtype
            constants.append(np.asarray(var.val, aval.dtype))
            arguments.append(Var(var.aval))
            return arguments[-1]

        outs = [jaxpr.outvars[i] for i in leaves]
        equations = []
        for eqn in _needed(outs, source):
            equations.append(eqn.replace(invars=[*map(as_argument, eqn.invars)]))
        program = jaxpr.replace(eqns=equations, invars=arguments, outvars=outs)
        return LeafProgram(leaves, ClosedJaxpr(program, create.consts), constants)

    return [part(leaves) for leaves in together.values()]


def _needed(outs: Sequence[Var | Literal], source: dict[Var, JaxprEqn]) -> list[JaxprEqn]:
    """Returns the equations that `outs` depend on, in topological order."""
    visited = {}

    def visit(var):
        if not isinstance(var, Literal) and var in source and id(source[var]) not in visited:
            for other in source[var].invars:
                visit(other)
            visited[id(source[var])] = source[var]

    for out in outs:
        visit(out)
    return list(visited.values())
