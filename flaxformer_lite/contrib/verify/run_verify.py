"""Prints which properties a model has, and what a mesh computes of it."""

import argparse
import sys
from collections.abc import Sequence

import jax

from flaxformer_lite import sharding
from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.open_model import folder_of, print_warnings
from flaxformer_lite.cli.read_page import read_page
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify import mesh
from flaxformer_lite.contrib.verify.checks import CHECKS, verify
from flaxformer_lite.contrib.verify.finding import Finding
from flaxformer_lite.open_model import load_pretrained
from flaxformer_lite.runs import mesh_checks
from flaxformer_lite.sharding import activations

MOST_PARAMETERS = 10  # parameters, worst first
MESH = "mesh"


def run(args: argparse.Namespace) -> None:
    """Prints a table of properties. Exits with 1 if the model lacks one that it should have."""
    checks = [name.strip() for name in args.checks.split(",") if name.strip()]
    if args.model:
        findings = _check_folder(args, checks)
    else:
        findings = _check_config(args, checks)
    rows = []
    for one in findings:
        difference = ""
        if one.difference is not None:
            difference = f"{one.difference:.1e}"
        rows.append([one.property, difference, f"{one.bound:.0e}", one.verdict, one.why])
    titles = ["property", "largest difference", "bound", "verdict", ""]
    print_table(titles, rows, right=[1, 2])
    verdicts = [one.verdict for one in findings]
    faults = verdicts.count("FAULT")
    print(
        f"{verdicts.count('holds')} properties hold, {faults} faults,"
        f" {verdicts.count('as published')} as published, {verdicts.count('not checked')} not"
        " checked"
    )
    if faults:
        sys.exit(command_line.EXIT_FAILED)


def _check_folder(args: argparse.Namespace, checks: Sequence[str]) -> list[Finding]:
    if MESH in checks:
        raise ConfigError("--checks=mesh: needs the sizes of a mesh; pass --config in place of it.")
    folder = folder_of(args.model)
    with print_warnings():
        loaded = load_pretrained(folder, allow_plugins=args.allow_plugins)
    return verify(*loaded, checks=checks, reference=args.reference)


def _check_config(args: argparse.Namespace, checks: Sequence[str]) -> list[Finding]:
    """Checks the first weights of a page, and prints what its mesh does."""
    cfg = read_page(args)
    mesh_checks.check_mesh(cfg, jax.device_count())
    wanted = mesh.reference(cfg)
    findings = []
    others = [name for name in checks or CHECKS if name != MESH]
    if others or args.reference:
        params = wanted.models.trained_params(wanted.state.params)
        findings += verify(wanted.models.model, params, checks=others, reference=args.reference)
    if not checks or MESH in checks:
        verdict = mesh.verify(wanted, cfg.mesh)
        sizes = sharding.mesh_sizes(cfg.mesh, jax.device_count())
        split = [f"{axis} {size}" for axis, size in sizes.items() if size > 1]
        print(f"mesh        {' x '.join(split) or 'one device'}, by {cfg.mesh.mode}")
        if cfg.model.matmul != "float":
            print(
                f"numbers     float32, without model.matmul={cfg.model.matmul}, whose rounding"
                " turns differences of 1e-7 into 1e-2"
            )
        _print_mesh(verdict, args.all)
        findings.append(verdict.finding)
    return findings


def _print_mesh(verdict: mesh.Verdict, shows_all: bool) -> None:
    one, many = verdict.losses
    print(f"loss        {one:.7f} on one device, {many:.7f} on the mesh")
    gradients = verdict.gradients
    if not shows_all:
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


def _row(gradient: mesh.Gradient) -> list[str]:
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
