"""The loss curve of a run as a picture."""

from pathlib import Path

from flaxformer_lite.training.report.metrics import Record, text_loss

TRAIN, HELD_OUT, BASELINE = "#8fa8c8", "#c44e52", "#555555"


def loss_curve(path: Path, history: list[Record], *, unigram: float, title: str) -> None:
    """Draws training loss, held-out loss and the unigram baseline over steps.

    Args:
      path: of the PNG.
      history: records of metrics.jsonl.
      unigram: loss of a model that knows only how frequent each token is, nats per target.
      title: above the axes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes a second, which no start should wait for
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    train = [r for r in history if r["split"] == "train"]
    held_out = [(r["step"], text_loss(r)) for r in history if r["split"] == "eval"]
    starts = [0, *(r["step"] for r in train)]
    middles = [(start + r["step"] + 1) / 2 for start, r in zip(starts, train, strict=False)]  # a record is a mean
    axes.axhline(unigram, color=BASELINE, linestyle="--", linewidth=1, label=f"unigram baseline, {unigram:.2f}")
    axes.plot(middles, [text_loss(r) for r in train], color=TRAIN, linewidth=1, label="training")
    last = f"held out, {held_out[-1][1]:.2f} at the end"
    axes.plot(*zip(*held_out, strict=True), color=HELD_OUT, linestyle="", marker="o", markersize=5, label=last)
    axes.set(xlabel="step", ylabel="loss (nats per target)", title=title)
    axes.set_xlim(left=-0.01 * held_out[-1][0])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    figure.savefig(path)
