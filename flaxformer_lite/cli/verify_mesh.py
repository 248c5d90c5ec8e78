"""Prints the comparison of a mesh with one device."""

import argparse
import sys

import jax

from flaxformer_lite import sharding
from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.runs import mesh_checks, verify_mesh
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runtime import invocation
from flaxformer_lite.sharding import activations

MOST_PARAMETERS = 10  # parameters, worst first


def run(args: argparse.Namespace) -> None:
    """Prints the verdict. Exits with 1 if the mesh computes something else."""
    cfg = read_experiment(
        command_line.config(args.overrides),
        given=invocation.fields_given(args.overrides),
        allow_plugins=args.allow_plugins,
    )
    mesh_checks.check_mesh(cfg, jax.device_count())
    verdict = verify_mesh.verify(verify_mesh.reference(cfg), cfg.mesh)
    sizes = sharding.mesh_sizes(cfg.mesh, jax.device_count())
    split = [f"{axis} {size}" for axis, size in sizes.items() if size > 1]
    mesh = " x ".join(split) or "one device"
    one, many = verdict.losses
    print(f"mesh        {mesh}, by {cfg.mesh.mode}")
    if cfg.model.matmul != "float":
        print(
            f"numbers     float32, without model.matmul={cfg.model.matmul}, whose rounding turns"
            " differences of 1e-7 into 1e-2"
        )
    print(f"loss        {one:.7f} on one device, {many:.7f} on the mesh")
    gradients = verdict.gradients
    if not args.all:
        gradients = gradients[:MOST_PARAMETERS]
    print_table(
        ["gradient of", "shape", "split over", "largest", "difference"],
        list(map(_row, gradients)),
        right=[3, 4],
    )
    for what in verdict.replicated:
        print(f"replicated  {what.path}, {what.bytes:,} bytes, by the rule {what.rule!r}")
    exchanges = []
    for sent in verdict.exchanges:
        axes = ", ".join(sent.axes) or "itself"
        exchanges.append([sent.kind, axes, f"{sent.times:,}", f"{sent.bytes:,}"])
    print_table(["exchanged", "over", "times", "bytes a step"], exchanges, right=[2, 3])
    for sentence in verdict.strange:
        print(f"unexpected  {sentence}")
    worst = verdict.gradients[0]
    equality = "DIFFERENT"
    if verdict.equal:
        equality = "equal to rounding"
    count = len(verdict.gradients)
    print(f"{equality}: {count} gradients, the worst {worst.path} by {worst.difference:.1e}")
    if not verdict.equal:
        sys.exit(command_line.FAILED)


def _row(gradient: verify_mesh.Gradient) -> list[str]:
    axes = []
    for entry in gradient.spec:
        if entry is None:
            axes.append("-")
        else:
            axes.append("x".join(activations.mesh_names(entry)))
    return [
        gradient.path,
        " x ".join(map(str, gradient.shape)),
        ", ".join(axes) or "-",
        f"{gradient.largest:.2e}",
        f"{gradient.difference:.1e}",
    ]
