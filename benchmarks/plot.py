"""Plots the results."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.lines import Line2D

from benchmarks import table

TITLES = {
    "time": "time of a step or a run",
    "first": "until the first one is done",
    "start": "peak memory of the start",
    "step": "peak memory later",
}
LABEL = (
    "torch.compile (training) or eager torch (generation) / flaxformer_lite: right of 1 we are"
    " ahead"
)
BEHIND = dict(color="white", alpha=0.7, pad=0.5)
COLORS = {"goal reached": "tab:blue", "missed": "tab:orange", "no goal": "tab:gray"}


def draw(results: dict, path: Path) -> None:
    """Draws one panel per question over the cases: the usual choice / ours, the goals, and the
    range of rounds."""
    rows = table.beside_the_usual(table.in_order(results["cases"]))
    if not rows:
        return
    figure, panels = pyplot.subplots(
        1, 4, figsize=(13, 1.5 + 0.42 * len(rows)), sharey=True, layout="constrained"
    )
    for panel, (what, title) in zip(panels, TITLES.items(), strict=True):
        for y, row in enumerate(rows):
            _point(panel, y, row[what], row[f"{what}_goal"])
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_xlim(0, 1.2 * panel.get_xlim()[1])
        panel.set_title(title, fontsize=10)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
        panel.grid(axis="x", color="0.92")
        panel.set_axisbelow(True)
    panels[0].set_yticks(range(len(rows)), [row["case"] for row in rows])
    panels[0].invert_yaxis()
    figure.supxlabel(LABEL, fontsize=10)
    marks = [Line2D([], [], color=color, marker="o", label=name) for name, color in COLORS.items()]
    figure.legend(
        handles=[*marks, Line2D([], [], color="tab:red", label="goal")],
        ncols=4,
        loc="outside upper left",
        fontsize=9,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _point(panel, y: int, ratio: dict | float, goal: float | None) -> None:
    """Draws a median with the range of rounds; a single number is one round's."""
    ratio = (
        ratio if isinstance(ratio, dict) else dict.fromkeys(("median", "lowest", "highest"), ratio)
    )
    value = ratio["median"]
    span = (ratio["lowest"], ratio["highest"])
    color = COLORS["no goal" if goal is None else "goal reached" if value >= goal else "missed"]
    panel.plot([0, value], [y, y], color=color, linewidth=8, alpha=0.25, solid_capstyle="butt")
    panel.plot(span, [y, y], color=color, linewidth=2, marker="|")
    panel.plot(value, y, "o", color=color)
    if goal is not None:
        panel.plot([goal, goal], [y - 0.3, y + 0.3], color="tab:red", linewidth=1.5)
    panel.annotate(
        f"{value:.2f}",
        (max(span), y),
        xytext=(7, -3),
        textcoords="offset points",
        fontsize=8,
        bbox=BEHIND,
    )
