"""The plot of a run's loss curve."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flaxformer_lite.objectives.base import Metric
from flaxformer_lite.training.report.metrics import Record, middles

TRAIN, HELD_OUT, BASELINE = "#8fa8c8", "#c44e52", "#555555"


def loss_curve(
    path: Path, history: list[Record], *, headline: Metric, baseline: tuple[str, float] | None, title: str
) -> None:
    """Plots the headline metric on training and held-out examples over steps, and its baseline.

    Args:
      path: path of the PNG.
      history: records of metrics.jsonl.
      headline: the objective's headline metric.
      baseline: its name and value, or None.
      title: title of the plot.
    """
    figure, axes = _axes(headline)
    train = [r for r in history if r["split"] == "train" and headline.name in r]
    held_out = [(r["step"], r[headline.name]) for r in history if r["split"] == "eval"]
    if baseline:
        name, value = baseline
        axes.axhline(value, color=BASELINE, linestyle="--", linewidth=1, label=f"{name}, {headline.show(value)}")
    axes.plot(middles(train), [r[headline.name] for r in train], color=TRAIN, linewidth=1, label="training")
    last = f"held out, {headline.show(held_out[-1][1])} at the end"
    axes.plot(*zip(*held_out, strict=True), color=HELD_OUT, linestyle="", marker="o", markersize=5, label=last)
    axes.set_title(title)
    axes.set_xlim(left=-0.01 * held_out[-1][0])
    axes.legend(frameon=False)
    figure.savefig(path)


def compared(path: Path, runs: Mapping[str, Sequence[tuple[float, float]]], metric: Metric) -> None:
    """Plots a metric of several runs on held-out examples, (step, value) by the run's name."""
    figure, axes = _axes(metric)
    for name, points in runs.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=1.2, label=name)
    axes.set_ylabel(f"held-out {axes.get_ylabel()}")
    axes.legend(frameon=False)
    figure.savefig(path)


def _axes(metric: Metric) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes a second, which no start should wait for
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(xlabel="step", ylabel=metric.words + (f" ({metric.unit})" if metric.unit else ""))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    return figure, axes
