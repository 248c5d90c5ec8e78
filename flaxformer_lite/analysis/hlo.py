"""Parses the text of a compiled program: its operations, their counts, and its collectives.

    module = parse(compiled.as_text())
    for found in collectives(module):
        print(found.kind, found.bytes * found.times, mesh_axes(found.groups, mesh.shape))

The text is XLA's HLO, from any backend. A loop's body counts once per iteration if the text says
how many there are.
"""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
)
# The TPU compiler's name for fusions that advance a collective while they compute.
CARRYING = "async_collective_fusion"
SIZES = {"pred": 1, "bf16": 2, "f16": 2, "token": 0, "opaque": 0}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_OP = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|body|branch_computations|called_computations|true_computation|false_computation)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CHANNEL = re.compile(r"channel_id=(\d+)")
_NAMED = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((\[[\d,]+\])(T\([\d,]+\))?\))? \{([^}]*)\}"
)
_OP_NAME = re.compile(r'op_name="([^"]*)"')

Groups = tuple[tuple[int, ...], ...]


class Array(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        size: float = 0
        bits = re.search(r"\d+", self.dtype)
        if bits:
            size = int(bits[0]) / 8
        return math.ceil(math.prod(self.shape) * SIZES.get(self.dtype, size))


@dataclasses.dataclass(frozen=True)
class Op:
    """One instruction: `name = arrays kind(operands), attributes`; a tuple has several arrays."""

    name: str
    kind: str
    arrays: tuple[Array, ...]
    rest: str  # operands and attributes, as text

    @property
    def source(self) -> str:
        """The JAX operation that it comes from, as a path of names."""
        match = _OP_NAME.search(self.rest)
        if not match:
            return ""
        return match[1]

    @property
    def bytes(self) -> int:
        """The size of all arrays of its result."""
        return sum(array.bytes for array in self.arrays)


class Module(NamedTuple):
    entry: str
    computations: dict[str, list[Op]]


class Visit(NamedTuple):
    """One place where an instruction runs.

    Attributes:
      op: the instruction.
      times: how often it runs in a call of the program.
      scope: the scheduled computation: the entry, or the body of a loop or branch.
      inside: the fused computation around it; empty if its result is a buffer of its own.
      exact: False if a loop around it has an unknown number of iterations and was counted once.
    """

    op: Op
    times: int
    scope: str
    inside: str
    exact: bool


class Collective(NamedTuple):
    """One exchange of data between devices.

    Attributes:
      kind: one of KINDS. A fused all-reduce that the TPU compiler writes for a reduce-scatter
        counts as the latter.
      bytes: size of the whole array (gathered, to be reduced, or permuted) as one device sees it;
        of a ragged exchange, what a device sends or receives at most, whichever is less.
      times: how often it runs in a call of the program.
      groups: ids of the partitions that exchange data with each other.
      source: the JAX operation that it comes from.
      beside: the fusions that advance it while they compute; empty if the schedule waits for it.
    """

    kind: str
    bytes: int
    times: int
    groups: Groups
    source: str
    arrays: tuple[Array, ...]
    beside: Sequence[Op] = ()


def parse(text: str) -> Module:
    """Parses the computations of a program's text."""
    computations: dict[str, list[Op]] = {}
    entry = ""
    current = None
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        op = _OP.match(line)
        if head:
            current = computations.setdefault(head[2], [])
            if head[1]:
                entry = head[2]
        elif line == "}":
            current = None
        elif current is not None and op:
            current.append(_op(op[2], op[3]))
        elif current:  # a kernel's attributes may contain newlines
            current[-1] = dataclasses.replace(current[-1], rest=current[-1].rest + line)
    return Module(entry, computations)


def visits(module: Module) -> Iterator[Visit]:
    """Yields every instruction at each place where the entry reaches it; reducers are left out."""
    yield from _visit(module, module.entry, 1, module.entry, "", True)


def arrays(text: str) -> tuple[Array, ...]:
    """Reads the arrays that a text lists, such as `bf16[8,128]{1,0}, s32[]`."""
    listed = []
    for dtype, dims in _ARRAY.findall(text):
        listed.append(Array(dtype, tuple(int(n) for n in dims.split(",") if n)))
    return tuple(listed)


def by_name(module: Module) -> dict[str, Op]:
    """Returns every instruction by its name, which no other computation has."""
    named = {}
    for operations in module.computations.values():
        for op in operations:
            named[op.name] = op
    return named


def operands(op: Op) -> list[str]:
    """Returns the names of an instruction's operands."""
    end = _closing("(" + op.rest) - 1
    return re.findall(r"%([\w.\-]+)", op.rest[:end])


def computations_with(module: Module, kinds: Container[str]) -> set[str]:
    """Returns the names of the computations that run an instruction of these kinds.

    They may call others that do.
    """
    found: set[str] = set()
    # A computation is written before those that call it.
    for name, operations in module.computations.items():
        for op in operations:
            if op.kind in kinds or not found.isdisjoint(called(op)):
                found.add(name)
    return found


def collectives(module: Module) -> list[Collective]:
    """Lists all exchanges between devices, each once, even if several fusions share its channel."""
    listed = []
    seen = set()
    beside: dict[tuple[str, str], list[Op]] = collections.defaultdict(list)
    outer: Op | None = None
    for visit in visits(module):
        if not visit.inside:
            outer = visit.op
        kind = visit.op.kind.removesuffix("-start")
        if kind not in KINDS:
            continue
        channel = _CHANNEL.search(visit.op.rest)
        exchange = channel[1] if channel else visit.op.name
        carried = beside[visit.scope, exchange]
        if visit.inside.startswith(CARRYING) and outer is not None:
            carried.append(outer)
        key: tuple[str, ...] = (visit.scope, visit.op.name)
        if channel and visit.inside:
            # All exchanges of `jax.shard_map` share one channel; only the parts of the same
            # exchange also share a source.
            key = (visit.scope, channel[1], visit.op.source)
        if key in seen:
            continue
        seen.add(key)
        arrays = _payload(visit.op, kind)
        groups = _groups(visit.op.rest)
        size = sum(array.bytes for array in arrays)
        if kind == "reduce-scatter" and groups:
            size *= len(groups[0])
        elif kind == "ragged-all-to-all":
            # The result has space for the rows of all devices if they came here.
            size = min(size, _first_operand(module, visit.op))
        elif kind == "all-reduce" and "all-reduce-scatter" in visit.inside:
            kind = "reduce-scatter"
        listed.append(Collective(kind, size, visit.times, groups, visit.op.source, arrays, carried))
    return listed


def mesh_axes(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes of size above one along which the members of a group differ.

    Args:
      groups: the groups of a Collective; empty means one group of all devices.
      mesh: axis name -> size, in the order of the mesh and so of the partition ids.
    """
    shape = tuple(mesh.values())
    if not groups:
        return tuple(name for name, size in mesh.items() if size > 1)
    coordinates = [np.stack(np.unravel_index(np.asarray(group), shape)) for group in groups]
    axes = []
    for i, name in enumerate(mesh):
        if any(len(set(of_group[i])) > 1 for of_group in coordinates):
            axes.append(name)
    return tuple(axes)


def _op(name: str, text: str) -> Op:
    end = _closing(text) if text.startswith("(") else text.find(" ")
    kind, _, rest = text[end:].lstrip().partition("(")
    return Op(name, kind, arrays(text[:end]), rest)


def _closing(text: str) -> int:
    """Returns the index after the parenthesis that closes the one at the start."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return at + 1
    return len(text)


def _visit(
    module: Module, name: str, times: int, scope: str, inside: str, exact: bool
) -> Iterator[Visit]:
    for op in module.computations.get(name, ()):
        yield Visit(op, times, scope, inside, exact)
        for each in called(op):
            if op.kind == "while":
                trips = _trips(module, op)
                yield from _visit(
                    module, each, times * (trips or 1), each, "", exact and trips is not None
                )
            elif op.kind in ("call", "conditional"):
                scheduled = each if op.kind == "conditional" else scope
                yield from _visit(module, each, times, scheduled, "", exact)
            else:
                yield from _visit(module, each, times, scope, each, exact)


def called(op: Op) -> list[str]:
    """Returns the computations that an instruction runs, but not the functions of reductions."""
    if op.kind.endswith(("-done", "-update")) and op.kind not in KINDS:
        return []
    text = op.rest
    if op.kind == "call":
        # In all other kinds, to_apply is the function of a reduction.
        text = text.replace("to_apply=", "calls=")
    listed: list[str] = []
    for names in _CALLED.findall(text):
        listed += [name.strip(" %") for name in names.strip("{}").split(",")]
    return listed


def _trips(module: Module, loop: Op) -> int | None:
    """Returns a loop's iterations; None if unknown.

    They are in the compiler's note, or the only constant of the loop's condition.
    """
    known = _TRIPS.search(loop.rest)
    if known:
        return int(known[1])
    condition = re.search(r"condition=%?([\w.\-]+)", loop.rest)
    if condition is None:
        return None
    limits = []
    for op in module.computations.get(condition[1], []):
        if op.kind == "constant" and op.arrays[0].dtype in ("s32", "s64"):
            limits.append(int(op.rest.split(")")[0]))
    if len(limits) != 1:
        return None
    return limits[0]


def _payload(op: Op, kind: str) -> tuple[Array, ...]:
    """Returns the output arrays, without the inputs and counters of an asynchronous start."""
    if not op.kind.endswith("-start") or kind == "all-reduce":
        return op.arrays
    if kind == "collective-permute":
        return op.arrays[:1]
    return op.arrays[len(op.arrays) // 2 :]


def _first_operand(module: Module, op: Op) -> int:
    """Returns the bytes of the first operand; the instruction it names has the shape."""
    name = re.match(r"\s*(?:\S+ )?%?([\w.\-]+)", op.rest)
    source = by_name(module).get(name[1] if name else "")
    if source is None:
        raise ValueError(f"{op.name}: no instruction of the program gives its first operand.")
    return source.bytes


def _groups(text: str) -> Groups:
    listed = re.search(r"(?:source_target_pairs|replica_groups)=\{(\{.*?\})\}", text)
    if listed:
        groups = re.findall(r"\{([\d,\s]*)\}", listed[1])
        return tuple(tuple(_numbers(group)) for group in groups)
    iota = re.search(r"replica_groups=(\[[\d,]+\]<=\S*?\])(T\([\d,]+\))?(?=[,\s]|$)", text)
    if iota:
        shape, devices = iota[1].split("<=")
        return _grouped(_iota(devices, iota[2]).reshape(_numbers(shape)))
    named = _NAMED.search(text)
    if named:
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        devices = _iota(named[2] or f"[{math.prod(sizes.values())}]", named[3])
        return _along(devices, sizes, named[4])
    return ()


def _numbers(text: str) -> list[int]:
    return list(map(int, re.findall(r"\d+", text)))


def _iota(shape: str, transposed: str | None) -> np.ndarray:
    sizes = _numbers(shape)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    if transposed:
        devices = devices.transpose(_numbers(transposed))
    return devices.reshape(-1)


def _grouped(devices: np.ndarray) -> Groups:
    return tuple(map(tuple, devices.tolist()))


def _along(devices: np.ndarray, sizes: dict[str, int], axes: str) -> Groups:
    """Builds groups along axes of a mesh.

    `'x':(2)4` is the sub-axis of size 4 below a major part of size 2.
    """
    parts = {name: [(1, size, 1)] for name, size in sizes.items()}
    chosen = []
    for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", axes):
        before = int(before or 1)
        size = int(size or sizes[name])
        parts[name] = [(before, size, sizes[name] // (before * size))]
        chosen.append(name)
    shape: list[int] = []
    for name in sizes:
        shape += itertools.chain.from_iterable(parts[name])
    moved = [3 * list(sizes).index(name) + 1 for name in chosen]
    grid = np.moveaxis(devices.reshape(shape), moved, range(-len(moved), 0))
    return _grouped(grid.reshape(-1, math.prod(grid.shape[len(shape) - len(moved) :])))
