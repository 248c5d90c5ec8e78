"""Estimates of train steps on pods, beside figures that MaxText measured on the same shapes.

    # compiles every row, a minute or several each; needs .[tpu-plan]
    python -m benchmarks.anchors
    # one row again; the others keep their figures
    python -m benchmarks.anchors --row=llama2_70b
    # MaxText's step by the same method, from the text of its program
    python -m benchmarks.anchors --row=llama2_70b --program=/tmp/step.hlo

Everything is an estimate of the TPU compiler on a machine without a TPU, except the column of what
MaxText published (docs/reference/models/tiering.md, commit e591f30). Where MaxText's own step was
compiled too (benchmarks/maxtext_step.py), the ratio of its estimate to its measurement is the error
of the method. Tokens per second are compared, as
projects count a model's FLOPs in different ways.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from flaxformer_lite.analysis import hlo
from flaxformer_lite.contrib.plan import costs, kernels, topology

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs" / "benchmarks" / "anchors.json"
# How costs.py sees a step: all traffic hidden, that beside computation, none.
CLOCKS = ("hidden", "scheduled", "exposed")


@dataclasses.dataclass(frozen=True)
class Anchor:
    """A shape that MaxText published, and how to plan it.

    Attributes:
      config, overrides: the page and its fields on the command line.
      machine: the topology.
      rows: sequences of `length` tokens per chip in MaxText's step.
      length: tokens of a sequence.
      measured: tokens per second and chip that MaxText published; 0 if it published none.
      mesh: MaxText's mesh.
    """

    config: str
    overrides: tuple[str, ...]
    machine: str
    rows: int
    length: int
    measured: float
    mesh: dict[str, int]


ANCHORS = {
    "llama2_70b": Anchor(
        "llama_70b", ("train.batch_size=2048",), "v5p:8x8x8", 4, 4096, 692, {"fsdp": 512}
    ),
    "llama3_8b": Anchor("llama3_8b", (), "v6e:16x16", 4, 8192, 7207, {"fsdp": 256}),
    "llama3_70b": Anchor("llama3_70b", (), "v6e:16x16", 2, 8192, 960, {"fsdp": 256}),
    "mixtral_8x7b": Anchor(
        "mixtral_8x7b",
        ("train.batch_size=4608", "train.accumulate=2", "mesh.expert=1", "mesh.fsdp=32"),
        "v5p:4x4x8",
        36,
        4096,
        2909,
        {"fsdp": 128},
    ),
    "llama_7b": Anchor("llama_7b", (), "v5e:16x16", 0, 2048, 0, {}),
    "t5_xxl": Anchor("t5_xxl", (), "v5p:4x4x4", 0, 512, 0, {}),
}


def plan(anchor: Anchor) -> dict:
    """Plans our step in a process of its own; returns what the table shows of it.

    Raises:
      SystemExit: the command failed, with its message; a step that does not fit is a row.
    """
    flags = [f"--config.{override}" for override in anchor.overrides]
    command = ["-m", "flaxformer_lite", "plan", f"--config={anchor.config}", *flags]
    command += [f"--topology={anchor.machine}", "--json"]
    ran = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if not ran.stdout.startswith("{"):
        sys.exit(f"python {' '.join(command)}:\n{ran.stderr[-2000:]}")
    found = json.loads(ran.stdout)
    if not found["fits"]:
        return {"how": found["how"], "fits": False, "excess": found["excess"]}
    hidden, exposed = found["seconds"]
    seconds = dict(zip(CLOCKS, (hidden, found["scheduled"], exposed), strict=True))
    per_chip = found["tokens"] / found["chips"]
    return {
        "how": found["how"],
        "fits": True,
        "gibibytes": found["memory"]["total"] / topology.GIB,
        "tokens_per_second": {clock: per_chip / each for clock, each in seconds.items()},
        "utilisation": found["utilisation"][1] * hidden / found["scheduled"],
        "remat": found["remat"],
        "mesh": found["mesh"],
        "largest": found["largest"],
    }


def read_program(path: Path, anchor: Anchor) -> dict[str, float]:
    """Returns tokens per second and chip of a compiled program, by each of CLOCKS.

    Args:
      path: the text of the program that MaxText's step was compiled to, with MaxText's mesh.
      anchor: the shape that it computes.
    """
    machine = topology.parse(anchor.machine)
    module = hlo.parse(path.read_text())
    times = kernels.seconds(module, machine.chip, causal=True)
    cost = costs.of(module, machine.chip, anchor.mesh, 1, times)
    hidden, exposed = cost.seconds
    tokens = anchor.rows * anchor.length
    seconds = dict(zip(CLOCKS, (hidden, cost.scheduled, exposed), strict=True))
    return {clock: tokens / each for clock, each in seconds.items()}


def table(stored: dict[str, dict]) -> str:
    """Writes the rows as Markdown: our estimate, MaxText's by the same method, and MaxText's
    measurement, in tokens per second and chip."""
    lines = [
        "| page | machine | ours, estimated | of the peak | GiB a chip | MaxText's step, estimated"
        " | MaxText, measured | estimate / measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, anchor in ANCHORS.items():
        ours = stored.get(name, {}).get("ours")
        theirs = stored.get(name, {}).get("maxtext")
        cells = ["not compiled", "", ""]
        if ours and not ours["fits"]:
            cells = ["does not fit", "", ""]
        elif ours:
            rate = spread(ours["tokens_per_second"])
            cells = [rate, f"{ours['utilisation']:.0%}", f"{ours['gibibytes']:.1f}"]
        cells.append(spread(theirs) if theirs else "")
        cells.append(f"{anchor.measured:,.0f}" if anchor.measured else "")
        ratio = f"{theirs['scheduled'] / anchor.measured:.2f}" if theirs else ""
        lines.append(f"| `{name}` | {anchor.machine} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines) + "\n"


def spread(rates: dict[str, float]) -> str:
    return f"{rates['scheduled']:,.0f} ({rates['exposed']:,.0f} to {rates['hidden']:,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", choices=ANCHORS, help="one row; all by default")
    parser.add_argument("--program", type=Path, help="the text of MaxText's compiled step")
    parser.add_argument("--out", type=Path, default=STORED, help="the JSON file of all figures")
    args = parser.parse_args()
    if args.program and not args.row:
        parser.error("--program needs --row, the shape that it computes")
    stored = json.loads(args.out.read_text()) if args.out.exists() else {}
    for name in [args.row] if args.row else ANCHORS:
        found = stored.setdefault(name, {})
        if args.program:
            found["maxtext"] = read_program(args.program, ANCHORS[name])
        else:
            found["ours"] = plan(ANCHORS[name])
        args.out.write_text(json.dumps(stored, indent=2) + "\n")
    print(table(stored))


if __name__ == "__main__":
    main()
