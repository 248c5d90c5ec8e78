"""The loss curve of a run as a picture."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flaxformer_lite.training.metrics import Record, text_loss

TRAIN, HELD_OUT, BASELINE = "#8fa8c8", "#c44e52", "#555555"


def loss_curve(path: Path, history: list[Record], *, unigram: float, title: str) -> None:
    """Draws training loss, held-out loss and the unigram baseline over steps.

    Args:
      path: of the PNG.
      history: records of metrics.jsonl.
      unigram: loss of a model that knows only how frequent each token is, nats per target.
      title: above the axes.
    """
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    train, held_out = ([(r["step"], text_loss(r)) for r in history if r["split"] == s] for s in ("train", "eval"))
    axes.axhline(unigram, color=BASELINE, linestyle="--", linewidth=1, label=f"unigram baseline {unigram:.2f}")
    axes.plot(*zip(*train, strict=True), color=TRAIN, linewidth=1, label="training")
    axes.plot(*zip(*held_out, strict=True), color=HELD_OUT, linewidth=1.5, marker="o", markersize=4, label="held out")
    step, last = held_out[-1]
    axes.annotate(f"{last:.2f}", (step, last), (4, 6), textcoords="offset points", color=HELD_OUT, ha="right")
    axes.set(xlabel="step", ylabel="loss (nats per target)", title=title)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    figure.savefig(path)
