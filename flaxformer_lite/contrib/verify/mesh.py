"""Comparison of one step on a mesh with the same step on one device."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec

from flaxformer_lite import sharding
from flaxformer_lite.analysis import hlo
from flaxformer_lite.analysis.compiler_messages import capture_stderr, count_rematerialized
from flaxformer_lite.config import ExperimentConfig, MeshConfig, OptimizerConfig
from flaxformer_lite.contrib.verify.finding import ROUNDING_BOUND, Finding, relative_difference
from flaxformer_lite.data import dummy
from flaxformer_lite.objectives.rows import Example
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.runs.start.referenced_weights import build_program
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.training import program as programs
from flaxformer_lite.training.bound_models import Models
from flaxformer_lite.training.program import Program
from flaxformer_lite.training.state import TrainState
from flaxformer_lite.types import Params

# relative to the largest gradient; smaller ones are compared with this, as a key's bias has
# gradient zero
NOISE_SHARE = 1e-4
FLOAT32_BYTES = 4
# sources of a lookup's exchanges, which depend on jax's version
EMBEDDED = re.compile(r"token_embed|embed/(sharding_constraint|norm/add_any)$")
EXPERT_EXCHANGES = {
    "gather": ("all-gather",),
    "all_to_all": ("all-to-all", "ragged-all-to-all"),
}
# After one step of gradient descent, the momentum is the gradient.
DESCENT = OptimizerConfig(
    name="sgd", schedule="constant", warmup_steps=0, weight_decay=0.0, clip_norm=0.0
)


class Gradient(NamedTuple):
    """The gradient of one parameter, with its largest number on one device."""

    path: str
    shape: tuple[int, ...]
    spec: PartitionSpec
    largest: float
    difference: float  # relative to `largest`, or to the noise if that is larger


class SentData(NamedTuple):
    """Data that devices send along axes of the mesh in a step; bytes are per device."""

    kind: str
    axes: tuple[str, ...]
    times: int
    bytes: int


class Verdict(NamedTuple):
    """The result of a comparison; `strange` describes exchanges that the mesh should not need."""

    losses: tuple[float, float]  # on one device, on the mesh
    gradients: list[Gradient]  # worst first
    replicated: list[sharding.Replicated]
    exchanges: list[SentData]
    strange: list[str]

    @property
    def finding(self) -> Finding:
        one, many = self.losses
        worst = self.gradients[0]
        difference = max(relative_difference(np.asarray(many), np.asarray(one)), worst.difference)
        return Finding(
            "mesh equals one device", difference, ROUNDING_BOUND, f"worst gradient: {worst.path}"
        )

    @property
    def equal(self) -> bool:
        return self.finding.verdict == "holds"


class Step(NamedTuple):
    """A step's gradients on the host, loss, compiled program and compiler warnings."""

    gradients: Params
    loss: float
    text: str
    rematerialised: int


class Reference(NamedTuple):
    """A step on one device, and everything needed to repeat it elsewhere."""

    cfg: ExperimentConfig
    state: TrainState
    batch: Example
    step: Step
    models: Models


def reference(cfg: ExperimentConfig) -> Reference:
    """Runs one step of the config on the first device.

    It computes in float32, also where the config says few bits: a difference in the last place of a
    float may round it to the next code, so that two correct programs differ by 1e-2.
    """
    cfg = programs.with_vocabulary(cfg, dummy.vocab_size(cfg))
    model = cfg.model.without_width_rule  # the same function; DESCENT follows no width
    plain = dataclasses.replace(
        model, dropout=0.0, dtype="float32", param_dtype="float32", matmul="float"
    )
    cfg = dataclasses.replace(cfg, model=plain, optimizer=DESCENT, mesh=MeshConfig(data=1))
    batch = dummy.batch(cfg)
    program = _program(cfg, jax.devices()[:1], batch)
    state = jax.tree.map(np.asarray, initial_state(program))
    return Reference(cfg, state, batch, _step(program, state, batch), program.models)


def verify(wanted: Reference, mesh: MeshConfig) -> Verdict:
    """Runs the same step on a mesh over all devices.

    Raises:
      ConfigError: mesh, batch and model do not fit each other.
    """
    cfg = dataclasses.replace(wanted.cfg, mesh=mesh)
    many = _program(cfg, jax.devices(), wanted.batch)
    got = _step(many, wanted.state, wanted.batch)
    module = hlo.parse(got.text)
    strange = [*_strange(many, module)]
    if got.rematerialised:
        strange.append(
            f"involuntary rematerialization: {got.rematerialised} arrays replicated to be split"
            " differently"
        )
    return Verdict(
        (wanted.step.loss, got.loss),
        _compare(many, wanted.step.gradients, got.gradients),
        sharding.list_replicated(many.target.params, many.rules, many.mesh),
        _exchanges(many, module),
        strange,
    )


def _program(cfg: ExperimentConfig, devices: Sequence[jax.Device], batch: Example) -> Program:
    mesh = sharding.build_mesh(cfg.mesh, devices)
    sharding.check_batch(cfg.train.batch_size, cfg.train.accumulate, mesh)
    example = jax.tree.map(lambda x: x[0], batch)
    return build_program(cfg, mesh, example)


def _step(program: Program, state: TrainState, batch: Example) -> Step:
    state = jax.tree.map(
        lambda x, target: jax.device_put(x, target.sharding), state, program.target
    )
    batch = sharding.place_batch(batch, program.mesh)
    with capture_stderr() as captured:
        compiled = program.train_step.lower(state, batch).compile()
        warned = count_rematerialized(captured())
    # a compiled pmap cannot be called
    run = program.train_step if program.cfg.mesh.mode == "pmap" else compiled
    state, metrics = run(state, batch)
    gradients = jax.tree.map(np.asarray, _momentum(state.opt_state))
    return Step(gradients, float(metrics["loss"]), compiled.as_text() or "", warned)


def _momentum(opt_state: optax.OptState) -> Params:
    """Returns the momentum of gradient descent, without the parameters that an adapter freezes."""
    parts = jax.tree.leaves(opt_state, is_leaf=lambda part: hasattr(part, "trace"))
    return next(part.trace for part in parts if hasattr(part, "trace"))


def _compare(program: Program, wanted: Params, got: Params) -> list[Gradient]:
    noise = NOISE_SHARE * max(np.abs(leaf).max() for leaf in jax.tree.leaves(wanted))
    gradients = []
    params = dict(jax.tree_util.tree_leaves_with_path(program.target.params))
    trained = jax.tree_util.tree_leaves_with_path(wanted)
    for (keys, a), b in zip(trained, jax.tree.leaves(got), strict=True):
        param = params[keys]
        largest = float(np.abs(a).max())
        difference = relative_difference(b, a, noise)  # NaN differs from every number
        spec = param.sharding.spec
        gradients.append(Gradient(path_of(keys), a.shape, spec, largest, difference))
    return sorted(gradients, key=lambda gradient: -gradient.difference)


def _exchanges(program: Program, module: hlo.Module) -> list[SentData]:
    times: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
    size = times.copy()
    for collective in hlo.collectives(module):
        key = collective.kind, hlo.mesh_axes(collective.groups, program.mesh.shape)
        times[key] += collective.times
        size[key] += collective.times * collective.bytes
    exchanges = (SentData(*key, times[key], size[key]) for key in times)
    return sorted(exchanges, key=lambda exchange: -exchange.bytes)


def _strange(program: Program, module: hlo.Module) -> Iterator[str]:
    """Finds exchanged activations.

    The design has only sums, gathered weights, what context parallelism sends, and the tokens that
    meet experts.
    """
    cfg = program.cfg
    mesh = program.mesh.shape
    parts = cfg.train.accumulate * sharding.num_batch_shards(mesh) * mesh["context"]
    tokens = cfg.train.batch_size * cfg.data.length // parts
    weights = _parts_of_weights(program)
    for collective in hlo.collectives(module):
        axes = hlo.mesh_axes(collective.groups, mesh)
        summed = collective.kind in ("all-reduce", "reduce-scatter")
        if summed or not axes or collective.bytes < tokens * cfg.model.d_model * FLOAT32_BYTES:
            continue
        # Tokens meet the experts of other devices, and their sums go back.
        experts = collective.kind in EXPERT_EXCHANGES[cfg.mesh.expert_dispatch]
        experts &= axes == ("expert",)
        ring = collective.kind == "collective-permute" and axes == ("context",)
        exchanged = collective.kind == "all-to-all" and axes == ("context",)
        exchanged &= cfg.mesh.context_attention == "all_to_all"
        gathered = collective.kind == "all-gather" and all(
            math.prod(array.shape) in weights for array in collective.arrays
        )
        # A table split by vocabulary gathers the gradients of all tokens, and keeps those of its
        # own words; rows may come from the devices that looked them up.
        table = (
            collective.kind in ("all-gather", "collective-permute")
            and "data" not in axes
            and EMBEDDED.search(collective.source)
        )
        if not (experts or ring or exchanged or gathered or table):
            shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in collective.arrays)
            yield (
                f"{collective.kind} of {shapes} over {', '.join(axes)}, {collective.times} times"
                f" ({collective.source})"
            )


def _parts_of_weights(program: Program) -> set[int]:
    """Returns the possible sizes of a weight and of one of its layers, after splits of the mesh."""
    ways = {1}
    for size in program.mesh.shape.values():
        ways |= {way * size for way in ways}
    unsplit = set()
    for leaf in jax.tree.leaves(program.target.params):
        if leaf.ndim > 1:
            unsplit |= {leaf.size, leaf.size // leaf.shape[0]}
    return {size // way for size in unsplit for way in ways}
