"""The plot of a run's loss curve."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flaxformer_lite.files.publish import write_file
from flaxformer_lite.objectives.base import Metric
from flaxformer_lite.runs.report.metrics import Record, middles

if TYPE_CHECKING:  # loaded where a curve is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAIN = "#8fa8c8"
HELD_OUT = "#c44e52"
BASELINE = "#555555"
BEST = "#2e7d32"


def loss_curve(
    path: Path,
    history: list[Record],
    *,
    headline: Metric,
    baseline: tuple[str, float] | None,
    title: str,
    best: tuple[Metric, int] | None = None,
    stopped: str = "",
) -> None:
    """Plots the headline metric on training and held-out examples over steps, and its baseline.

    Args:
      path: of a PNG.
      best: the metric of `train.best` and the best step, or None; unless it is the headline, the
        metric gets a second panel.
      stopped: why the run ended before its last step, or an empty string.
    """
    metrics = [headline]
    if best and best[0].name != headline.name:
        metrics.append(best[0])
    figure, panels = _panels(metrics)
    for axes, metric in zip(panels, metrics, strict=True):
        _draw(axes, history, metric, baseline if metric is headline else None)
        if best:
            axes.axvline(
                best[1],
                color=BEST,
                linewidth=1.5,
                label=f"best by {best[0].words}, after {best[1]} steps",
            )
        if stopped:
            last = max(r["step"] for r in history if r["split"] == "eval")
            axes.axvline(
                last, color=BASELINE, linestyle=":", linewidth=1.5, label=f"stopped: {stopped}"
            )
        axes.legend(edgecolor="none", framealpha=0.9)
    panels[0].set_title(title)
    _write(path, figure)


def _draw(
    axes: "Axes", history: list[Record], metric: Metric, baseline: tuple[str, float] | None
) -> None:
    train = [r for r in history if r["split"] == "train" and metric.name in r]
    held_out = [(r["step"], r[metric.name]) for r in history if r["split"] == "eval"]
    if baseline:
        name, value = baseline
        axes.axhline(
            value,
            color=BASELINE,
            linestyle="--",
            linewidth=1,
            label=f"{name}, {metric.show(value)}",
        )
    marker = ""
    if len(train) == 1:  # a line of one point could not be seen
        marker = "o"
    axes.plot(
        middles(train),
        [r[metric.name] for r in train],
        color=TRAIN,
        linewidth=1,
        marker=marker,
        label="training",
    )
    last = f"held out, {metric.show(held_out[-1][1])} at the end"
    axes.plot(
        *zip(*held_out, strict=True),
        color=HELD_OUT,
        linestyle="",
        marker="o",
        markersize=5,
        label=last,
    )
    axes.set_xlim(left=-0.01 * held_out[-1][0])


def compared(path: Path, runs: Mapping[str, Sequence[tuple[float, float]]], metric: Metric) -> None:
    """Plots a held-out metric of several runs, as (step, value) by the run's name."""
    figure, (axes,) = _panels([metric])
    for name, points in runs.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=1.2, label=name)
    axes.set_ylabel(f"held-out {axes.get_ylabel()}")
    axes.legend(frameon=False)
    _write(path, figure)


def _write(path: Path, figure: "Figure") -> None:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    write_file(path, drawn.getvalue())


def _panels(metrics: Sequence[Metric]) -> "tuple[Figure, np.ndarray]":
    """Returns a figure and its axes, one panel below the other for each metric."""
    # Imported here: it takes a second, for which no start should wait.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 3.5 * len(metrics)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(metrics), sharex=True, squeeze=False)[:, 0]
    for axes, metric in zip(panels, metrics, strict=True):
        unit = f" ({metric.unit})" if metric.unit else ""
        axes.set(ylabel=f"{metric.words}{unit}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e6e6e6")
        axes.set_axisbelow(True)
    panels[-1].set_xlabel("step")
    return figure, panels
