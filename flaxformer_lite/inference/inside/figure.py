"""A figure of attention maps for papers: layers by heads, as PNG, PDF or SVG."""

import io
import textwrap
from pathlib import Path

import numpy as np

from flaxformer_lite.files.publish import write_file
from flaxformer_lite.inference.inside.summary import AttentionMaps

SMALLEST = 0.62  # inches of a map
LARGEST = 1.8
HIDDEN = "#dcdcd6"  # the color of columns that the mask hides


def save_figure(path: Path, attentions: list[AttentionMaps], title: str) -> None:
    """Draws the attention maps of every layer (rows) and head (columns).

    There is one panel for each kind of attention.

    Args:
      path: the file; its suffix decides the format.
      attentions: at least one kind.
      title: the figure's title.
    """
    import matplotlib  # takes a second, which no start should wait for
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    shapes = [maps.weights_LNTS.shape[:2] for maps in attentions]
    most_heads = max(heads for _, heads in shapes)
    size = max(SMALLEST, min(LARGEST, 6 / most_heads))
    heights = [size * layers + 0.6 for layers, _ in shapes]
    width = size * most_heads + 1.8
    figure = Figure(figsize=(width, sum(heights) + 0.5), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(textwrap.fill(title, int(11 * width)), x=0.01, ha="left", fontsize="medium")
    blues = matplotlib.colormaps["Blues"].with_extremes(bad=HIDDEN)
    panels = figure.subplots(len(attentions), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes, maps, (layers, heads) in zip(panels, attentions, shapes, strict=True):
        # Every map is drawn as a square, even if its two texts have different lengths.
        placement = {"extent": (0, heads, layers, 0), "aspect": "auto", "interpolation": "nearest"}
        image = axes.imshow(mosaic(maps), cmap=blues, norm=PowerNorm(0.5, 0, 1), **placement)
        axes.set_box_aspect(layers / heads)
        axes.set_anchor("W")
        axes.set_yticks(
            np.arange(layers) + 0.5,
            [f"layer {i}" for i in maps.layers],
            fontsize="x-small",
        )
        axes.set_xticks(
            np.arange(heads) + 0.5,
            [f"head {n}" for n in range(heads)],
            fontsize="x-small",
        )
        axes.hlines(range(1, layers), 0, heads, color="white", linewidth=2)
        axes.vlines(range(1, heads), 0, layers, color="white", linewidth=2)
        if len(attentions) > 1:
            axes.set_title(maps.name, loc="left", fontsize="small")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    beside = {"aspect": 25, "anchor": (0, 1), "shrink": min(1, 3 / sum(heights))}
    figure.colorbar(image, ax=list(panels), label="attention weight", **beside)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:])
    write_file(path, drawn.getvalue())


def mosaic(maps: AttentionMaps) -> np.ndarray:
    """Lays the maps of layers (down) and heads (across) side by side, NaN where the mask hides."""
    layers, heads, T, S = maps.weights_LNTS.shape
    shown = np.where(maps.visible_LTS[:, None], maps.weights_LNTS, np.nan)
    return shown.transpose(0, 2, 1, 3).reshape(layers * T, heads * S)
