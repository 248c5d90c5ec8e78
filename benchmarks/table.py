"""The page of results. Every ratio is theirs / ours: above 1 we are ahead."""

import statistics

from benchmarks.cases import CASES
from benchmarks.child import MATMUL

OURS = "flaxformer_lite"
# the reference of the goals, by kind of case
USUAL = {
    "train": "HF torch.compile",
    "generate": "HF torch eager",
}
FIRST_GOAL = 3.0  # of train steps
MEMORY_GOAL = 1.0
MIB = 2**20


def of_case(name: str, result: dict) -> str:
    """Writes the Markdown table of one case, with one row per peer."""
    case = CASES[name]
    peers = result["peers"]
    unit, last = ("step", "of the peak") if case.kind == "train" else ("run", "same ids")
    peak = max(2 * MATMUL**3 / peer["matmul_seconds"] for peer in peers.values())
    rows = [
        (
            f"| {name} | s a {unit} | CPU s | tokens/s | time / ours | first {unit} | memory, start"
            f" | workers | memory, {unit}s | {last} | rounds |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for peer, p in peers.items():
        share = result["flops"] / p["seconds"] / peak if case.kind == "train" else p["same_ids"]
        memory = (f"{p[f'{when}_bytes'] / MIB:,.0f} MiB" for when in ("start", "worker", "step"))
        rows.append(
            f"| {peer} | {p['seconds']:.3f} | {p['cpu_seconds']:.2f} |"
            f" {case.tokens / p['seconds']:,.0f} | {_spread(p['times_ours'])} |"
            f" {p['first_seconds']:.1f} s | {' | '.join(memory)} | {share:.0%} |"
            f" {len(p['rounds'])} |"
        )
    return "\n".join([*rows, "", _stamp(result), ""])


def in_order(cases: dict[str, dict]) -> dict[str, dict]:
    """Sorts the measured cases in the order of CASES."""
    return {name: cases[name] for name in CASES if name in cases}


def beside_the_usual(cases: dict[str, dict]) -> list[dict]:
    """Compares ours with the usual choice, with one row for each case where that was measured.

    Returns:
      dicts of case, usual, and the ratios time (its median, lowest, highest), first, start, step,
      each with its goal as time_goal, ...; None is no goal.
    """
    rows = []
    for name, result in cases.items():
        case = CASES[name]
        usual = USUAL[case.kind]
        if usual not in result["peers"]:
            continue
        theirs = result["peers"][usual]
        ours = result["peers"][OURS]
        trains = case.kind == "train"
        start = (theirs["start_bytes"] + theirs["worker_bytes"]) / (
            ours["start_bytes"] + ours["worker_bytes"]
        )
        rows.append(
            {
                "case": name,
                "usual": usual,
                "time": theirs["times_ours"],
                "time_goal": case.goal,
                "first": theirs["first_seconds"] / ours["first_seconds"],
                "first_goal": FIRST_GOAL if trains else None,
                "start": start,
                "start_goal": MEMORY_GOAL if trains else None,
                "step": theirs["step_bytes"] / ours["step_bytes"],
                "step_goal": MEMORY_GOAL if trains else None,
            }
        )
    return rows


def page(results: dict) -> str:
    """Writes the whole page, with the commands to measure everything again."""
    cases = in_order(results["cases"])
    peers = {
        name: p["versions"] for result in cases.values() for name, p in result["peers"].items()
    }
    versions = "\n".join(f"* {name}: {_pairs(facts)}" for name, facts in peers.items())
    lines = ["# Measured on a CPU", f"{_pairs(results['machine'])}.", versions]
    if usual := beside_the_usual(cases):
        lines += [
            "![Time, first step and memory of the usual choice over ours](cpu.png)",
            (
                "## Beside the usual choice\n\nTheirs / ours, higher is better; a goal that is"
                " missed is in bold."
            ),
            _usual_table(usual),
        ]
    if cases:
        lines += ["## All peers", *(of_case(name, result) for name, result in cases.items())]
    if results["start"]:
        lines += ["## How it starts", _start_table(results["start"])]
    return "\n\n".join(line.rstrip("\n") for line in lines if line) + "\n"


def _usual_table(rows: list[dict]) -> str:
    lines = [
        (
            "| case | beside | time (lowest to highest) | goal | first | goal | memory, start |"
            " memory, later | goal |"
        ),
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        first, start, step = (
            _goal(f"{r[what]:.2f}x", r[what], r[f"{what}_goal"])
            for what in ("first", "start", "step")
        )
        time = _goal(_spread(r["time"]), r["time"]["median"], r["time_goal"])
        goals = [
            f"{goal:g}x" if goal else ""
            for goal in (r["time_goal"], r["first_goal"], r["step_goal"])
        ]
        lines.append(
            f"| {r['case']} | {r['usual']} | {time} | {goals[0]} | {first} | {goals[1]} | {start} |"
            f" {step} | {goals[2]} |"
        )
    return "\n".join(lines)


def _start_table(start: dict[str, dict]) -> str:
    lines = ["| what | median (lowest to highest) | at most |", "|---|---:|---:|"]
    for row in (row for result in start.values() for row in result["rows"]):
        form = "{:.2%}" if row["unit"] == "%" else "{:.2f}" + row["unit"]
        median, low, high = (form.format(f(row["values"])) for f in (statistics.median, min, max))
        said = f"{median} ({low} to {high})" if len(row["values"]) > 1 else median
        most = "" if row["most"] is None else form.format(row["most"])
        missed = row["most"] is not None and statistics.median(row["values"]) > row["most"]
        lines.append(f"| {row['what']} | {f'**{said}**' if missed else said} | {most} |")
    together = {}
    for result in start.values():
        together.setdefault((result["date"], result["command"]), []).extend(result["load"])
    stamps = (
        _stamp({"date": date, "command": c, "load": loads}) for (date, c), loads in together.items()
    )
    return "\n".join([*lines, "", *stamps])


def _goal(said: str, value: float, goal: float | None) -> str:
    return said if goal is None or value >= goal else f"**{said}**"


def _spread(ratio: dict[str, float]) -> str:
    median, lowest, highest = (f"{ratio[key]:.2f}" for key in ("median", "lowest", "highest"))
    return f"{median}x" if lowest == highest else f"{median}x ({lowest} to {highest})"


def _stamp(result: dict) -> str:
    before, *_, after = result["load"]
    return (
        f"{result['date']}, load {before:.1f} before and {after:.1f} after: `{result['command']}`"
    )


def _pairs(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
