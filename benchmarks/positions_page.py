"""The page of position encodings: a table, losses by position, and a picture of each encoding."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
from flax.traverse_util import flatten_dict
from matplotlib import pyplot

from flaxformer_lite.nn.functions import kernels, rotary
from flaxformer_lite.nn.positions.encoding import Encoding, list_hooks

START = "<!-- measured by benchmarks/positions.py -->"
END = "<!-- to here -->"
GROUPS = {
    "embed": "added to the embeddings",
    "phase": "rotates queries and keys",
    "bias": "added to the logits, or none",
}
BIN = 16  # positions that share a point of the plot
MEANS = {
    "embed": "added vectors, q . k",
    "phase": "rotated vector, q . k",
    "bias": "bias of a head",
}


def picture(position: Encoding, params: Any, length: int) -> list[list[float]] | None:
    """Returns what an encoding says of query and key positions, [T, S], largest 1; None if it says
    nothing.

    Args:
      position: the encoding.
      params: a model that was trained with it, whose tables are read; of several layers those of
        the first.
      length: T, or fewer where its table ends.
    """
    tables = {
        path[-1]: jnp.asarray(x)
        for path, x in reversed(flatten_dict(params).items())
        if "position" in path[:-1]
    }
    span = position.span(len(tables["position"])) if "position" in tables else None
    at_1T = jnp.arange(min(length, len(span) if span else length), dtype=jnp.int32)[None]
    T = at_1T.shape[1]
    hook, *_ = (*list_hooks(position), "")
    if hook == "embed":
        width = tables["position"].shape[1] if tables else 64
        vectors_TD = position.embed(tables, jnp.zeros((1, T, width)), at_1T)[0]
        dots_TS = vectors_TD @ vectors_TD.T
    elif hook == "phase":
        same_BTNH = rotary.rotate(jnp.ones((1, T, 1, 32)), position.phase(at_1T, 32))
        dots_TS = kernels.dot_products(same_BTNH, same_BTNH)[0, 0]
    elif hook == "bias":
        query_H = _telling(np.asarray(tables["key"])) if "key" in tables else np.ones(1)
        heads = tables["relative"].shape[1] if "relative" in tables else 4
        q_BTNH = jnp.broadcast_to(jnp.asarray(query_H, jnp.float32), (1, T, heads, len(query_H)))
        dots_TS = position.bias(tables, q_BTNH, at_1T, at_1T, bidirectional=False)[0, heads // 2]
    else:
        return None
    visible = np.tril(np.ones((T, T), bool))
    dots_TS = np.where(visible, np.asarray(dots_TS, np.float64), np.nan)
    return (dots_TS / max(np.nanmax(np.abs(dots_TS)), 1e-9)).round(3).tolist()


def _telling(key_RH: np.ndarray) -> np.ndarray:
    """Returns the query whose products with these keys differ the most."""
    return np.linalg.svd(key_RH - key_RH.mean(axis=0))[2][0]


def table(results: list[dict[str, Any]], length: int, longer: int) -> str:
    """Writes the losses as Markdown, lowest at the longer length first, and the words of
    refusals."""
    lines = [
        f"| encoding | acts by | {length} tokens | {longer} tokens | change |",
        "|---|---|---:|---:|---:|",
    ]
    refused = [row for row in results if isinstance(row["longer"], str)]
    for row in sorted(
        (row for row in results if row not in refused), key=lambda row: row["longer"]
    ):
        change = row["longer"] - row["same"]
        lines.append(f"{_start(row)} {row['longer']:.3f} | {change:+.3f} |")
    lines += [f"{_start(row)} refused | |" for row in refused]
    return "\n".join(
        [*lines, *(f"\nrefused: `{said}`" for said in sorted({row["longer"] for row in refused}))]
    )


def _start(row: dict[str, Any]) -> str:
    return f"| {row['name']} | {', '.join(row['hooks']) or 'nothing'} | {row['same']:.3f} |"


def write(out: Path, results: list[dict[str, Any]], length: int, longer: int) -> None:
    """Writes positions.md, where only the measured part is replaced, and the figures and numbers in
    positions/."""
    folder = out / "positions"
    page = out / "positions.md"
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [{key: value for key, value in row.items() if key != "picture"} for row in results]
    (folder / "results.json").write_text(json.dumps(numbers, indent=1) + "\n")
    draw_losses(folder / "loss.png", results, length)
    draw_encodings(folder / "encodings.png", results, length)
    text = page.read_text() if page.exists() else f"# Position encodings\n\n{START}\n{END}\n"
    before, _, rest = text.partition(START)
    figures = "![Loss by position](positions/loss.png)"
    _, _, after = rest.partition(END)
    page.write_text(
        f"{before}{START}\n\n{table(results, length, longer)}\n\n{figures}\n\n{END}{after}"
    )


def draw_losses(path: Path, results: list[dict[str, Any]], length: int) -> None:
    """Draws the loss of each encoding by position, in three panels."""
    figure, panels = pyplot.subplots(
        1, 3, figsize=(13, 4.2), sharex=True, sharey=True, layout="constrained"
    )
    for panel, (group, title) in zip(panels, GROUPS.items(), strict=True):
        for row in results:
            if (row["hooks"] or ["bias"])[0] != group:
                continue
            means = row["by_position"]
            middles = (np.arange(len(means)) + 0.5) * BIN
            (drawn,) = panel.plot(middles, means, marker="o", markersize=3, label=row["name"])
            if isinstance(row["longer"], str):
                color = drawn.get_color()
                label = f"{row['name']}: refused beyond"
                panel.plot(
                    length, means[-1], "x", color=color, markersize=9, label=label, linestyle=""
                )
        panel.axvline(length, color="#555555", linestyle="--", linewidth=1)
        panel.set(title=title, xlabel="position")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e6e6e6")
        if panel.get_legend_handles_labels()[0]:
            panel.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    panels[0].set(ylabel="held-out loss (nats per token)")
    panels[0].set_ylim(top=panels[0].get_ylim()[1] + 0.3)  # room for the legends
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_encodings(path: Path, results: list[dict[str, Any]], length: int) -> None:
    """Draws each encoding as a heat map over query and key positions."""
    rows = [row for row in results if row["picture"]]
    if not rows:
        return
    across = min(len(rows), 5)
    down = -(-len(rows) // across)
    figure, panels = pyplot.subplots(
        down,
        across,
        figsize=(2.6 * across + 1, 3.2 * down),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for panel in panels.flat[len(rows) :]:
        panel.axis("off")
    for panel, row in zip(panels.flat, rows, strict=False):
        image = panel.imshow(
            np.asarray(row["picture"], np.float64), cmap="RdBu_r", vmin=-1, vmax=1, origin="upper"
        )
        panel.set_title(f"{row['name']}\n{MEANS[row['hooks'][0]]}", fontsize=11)
        for line in (panel.axvline, panel.axhline):
            line(length - 0.5, color="#555555", linewidth=0.6)
    panels[0, 0].set(ylabel="query position")
    panels[-1, 0].set(xlabel="key position")
    longest = max(len(row["picture"]) for row in rows)
    panels[0, 0].set(xlim=(-0.5, longest - 0.5), ylim=(longest - 0.5, -0.5))
    for panel in panels[:-1].flat:
        panel.tick_params(labelbottom=False)
    figure.colorbar(image, ax=panels, shrink=0.6, label="share of the largest")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
