"""The verdict on a mesh as tables on the terminal."""

import argparse
import sys

import jax
from rich.console import Console
from rich.table import Table

from flaxformer_lite import sharding
from flaxformer_lite.cli import command_line
from flaxformer_lite.plan import planner, verify_mesh
from flaxformer_lite.runtime import invocation
from flaxformer_lite.sharding import activations
from flaxformer_lite.training.start.adopt import read_experiment

SHOWN = 10  # parameters, worst first


def run(args: argparse.Namespace) -> None:
    """Prints the verdict. Exits with 1 if the mesh computes something else."""
    cfg = read_experiment(command_line.config(args.overrides), given=invocation.fields_given(args.overrides))
    planner.check(cfg, jax.device_count())
    verdict = verify_mesh.verify(verify_mesh.reference(cfg), cfg.mesh)
    out = Console(width=None if Console().is_terminal else 160, highlight=False)
    sizes = sharding.mesh_sizes(cfg.mesh, jax.device_count())
    mesh = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "one device"
    one, many = verdict.losses
    out.print(f"mesh        {mesh}, by {cfg.mesh.mode}", soft_wrap=True)
    out.print(f"loss        {one:.7f} on one device, {many:.7f} on the mesh", soft_wrap=True)
    out.print(_gradients(verdict.gradients if args.all else verdict.gradients[:SHOWN]))
    for what in verdict.replicated:
        line = f"replicated  {what.path}, {what.bytes:,} bytes, by the rule {what.rule!r}"
        out.print(line, markup=False, soft_wrap=True)
    out.print(_exchanged(verdict.exchanges))
    for sentence in verdict.strange:
        out.print(f"unexpected  {sentence}", markup=False, soft_wrap=True)
    worst = verdict.gradients[0]
    said = f"{'equal to rounding' if verdict.equal else 'DIFFERENT'}: {len(verdict.gradients)} gradients"
    out.print(f"{said}, the worst {worst.path} by {worst.difference:.1e}", soft_wrap=True)
    if not verdict.equal:
        sys.exit(command_line.FAILED)


def _gradients(gradients: list[verify_mesh.Gradient]) -> Table:
    table = _table(("gradient of", "shape", "split over", "largest", "difference"), right=2)
    for g in gradients:
        split = ", ".join("-" if e is None else "x".join(activations.mesh_names(e)) for e in g.spec) or "-"
        table.add_row(g.path, " x ".join(map(str, g.shape)), split, f"{g.largest:.2e}", f"{g.difference:.1e}")
    return table


def _exchanged(exchanges: list[verify_mesh.Exchange]) -> Table:
    table = _table(("exchanged", "over", "times", "bytes a step"), right=2)
    for e in exchanges:
        table.add_row(e.kind, ", ".join(e.axes) or "itself", f"{e.times:,}", f"{e.bytes:,}")
    return table


def _table(titles: tuple[str, ...], right: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, title in enumerate(titles):
        table.add_column(title, justify="right" if i >= len(titles) - right else "left", overflow="fold")
    return table
