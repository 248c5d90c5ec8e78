"""The jit of steps over a mesh, and data parallelism written by hand."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from flaxformer_lite.nn.functions.tuning import compiler_options
from flaxformer_lite.sharding.activations import DATA, MeshSharding
from flaxformer_lite.sharding.batches import BATCH
from flaxformer_lite.sharding.parameters import HasParams


class Jitted(Protocol):
    """A step as jax.jit returns it: called, or lowered first."""

    def __call__(self, *arguments: object) -> Any: ...

    def lower(self, *arguments: object) -> jax.stages.Lowered: ...

    def trace(self, *arguments: object) -> jax.stages.Traced: ...


def jit_step(step: Callable, shardings: HasParams, mesh: Mesh, mode: str = "jit") -> Jitted:
    """Compiles (state, batch) -> (state, metrics) over the mesh.

    The old state is donated to the new one.

    Args:
      step: sees the whole batch under `jit`, in other modes its own part, and then sums over the
        axis DATA.
      shardings: of the state; in other modes than `jit` all leaves are replicated.
      mesh: the devices.
      mode: `mode` of MeshConfig.
    """
    if mode == "pmap":
        return _pmapped(step, mesh)
    replicated = NamedSharding(mesh, P())
    rows = NamedSharding(mesh, BATCH)
    if mode == "shard_map":
        step = jax.shard_map(step, mesh=mesh, in_specs=(P(), BATCH), out_specs=P(), check_vma=False)
    options = compiler_options(MeshSharding(mesh).device_kind)
    return jax.jit(
        step,
        in_shardings=(shardings, rows),
        out_shardings=(shardings, replicated),
        donate_argnums=0,
        compiler_options=options,
    )


def _pmapped(step: Callable, mesh: Mesh) -> Jitted:
    """Wraps the step in `jax.pmap`, for states and batches without a device axis."""
    mapped = jax.pmap(
        step,
        axis_name=DATA,
        in_axes=(None, 0),
        out_axes=None,
        devices=list(mesh.devices.flat),
        donate_argnums=0,
    )

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P(DATA)))
    def by_device(batch):
        return jax.tree.map(lambda x: x.reshape(mesh.size, -1, *x.shape[1:]), batch)

    def run(state, batch):
        return mapped(state, by_device(batch))

    jitted: Any = run
    jitted.lower = lambda state, batch: mapped.lower(state, by_device(batch))
    return jitted


def jit_eval(step: Callable, shardings: HasParams, mesh: Mesh) -> Jitted:
    """Compiles (params, batch) -> sums, over the mesh."""
    replicated = NamedSharding(mesh, P())
    rows = NamedSharding(mesh, BATCH)
    # Nothing is donated, as training goes on with the parameters.
    return jax.jit(step, in_shardings=(shardings.params, rows), out_shardings=replicated)
