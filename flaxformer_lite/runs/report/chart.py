"""Charts of lines for an HTML page: an SVG that stretches with the page, with labels outside it
that keep their size."""

import html
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

MOST = 400  # points of a line; of more, the lowest and the highest in each part are drawn
DOTTED = 60  # most points that are marked
SPREAD = 20  # how often the largest value exceeds the median on a logarithmic axis
SIZE = 1000  # of the SVG's own coordinates
HEIGHT = operator.itemgetter(1)
Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """A line of a chart.

    Attributes:
      points: (x, y) with growing x; those that are not finite are left out.
      color: a class of page.py, such as "c0".
      dots: whether each point is marked, and named under the pointer, if there are not too many.
    """

    label: str
    points: Points
    color: str
    dots: bool = False


def chart(
    title: str,
    lines: Sequence[Line],
    last: float,
    *,
    level: tuple[str, float] | None = None,
    tall: bool = False,
) -> str:
    """Draws lines over steps as a <figure>; the axis is logarithmic where a few values would press
    the others together.

    Args:
      lines: at least one of them has a finite point, or an empty string is returned.
      last: step where the horizontal axis ends; it begins at 0.
      level: name and value of a dashed horizontal line.
      tall: whether the chart is the page's main one.
    """
    drawn = [line._replace(points=_thinned(line.points)) for line in lines]
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return ""
    last = last or 1.0
    values = sorted([y for line in drawn for _, y in line.points] + ([level[1]] if level else []))
    is_log = values[0] > 0 and values[-1] > SPREAD * values[len(values) // 2]
    scale: Callable[[float], float] = math.log10 if is_log else float
    low = scale(values[0])
    high = scale(values[-1])
    margin = (high - low or abs(high) or 1) * 0.06
    low = low - margin
    high = high + margin

    def place(x: float, y: float) -> str:
        return f"{SIZE * x / last:.4g} {SIZE * (high - scale(y)) / (high - low):.4g}"

    rows = [(100 * (high - scale(y)) / (high - low), name) for y, name in _ticks(low, high, is_log)]
    parts = [f'<path class="grid" d="M0 {10 * top:.4g}H{SIZE}"/>' for top, _ in rows]
    key = [f'<span class="key {line.color}">{html.escape(line.label)}</span>' for line in drawn]
    if level:
        parts.append(f'<path class="level" d="M{place(0, level[1])}H{SIZE}"/>')
        key.append(f'<span class="key level">{html.escape(level[0])}, {number(level[1])}</span>')
    for line in drawn:
        parts.append(
            f'<path class="{line.color}" d="M{"L".join(place(*point) for point in line.points)}"/>'
        )
        for x, y in line.points if line.dots and len(line.points) <= DOTTED else ():
            name = f"<title>step {x:g}: {y:.6g}</title>"
            parts.append(f'<path class="dot {line.color}" d="M{place(x, y)}h0">{name}</path>')
    parts = [f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none">{"".join(parts)}</svg>']
    parts += [f'<span class="y" style="top:{top:.4g}%">{name}</span>' for top, name in rows]
    parts += [
        f'<span class="x" style="left:{100 * x / last:.4g}%">{name}</span>'
        for x, name in _ticks(0, last, False)
    ]
    shown = "".join(key) if len(key) > 1 else ""
    caption = (
        f"<figcaption><b>{html.escape(title)}</b>{' (logarithmic)' * is_log}{shown}</figcaption>"
    )
    return (
        f'<figure{" class=tall" * tall}>{caption}<div class="plot">{"".join(parts)}</div></figure>'
    )


def number(value: float, digits: int = 4) -> str:
    """Formats a number on an axis: 0.25, 12k, 3M, 3e-08."""
    for least, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:.{digits}g}{name}"
    return f"{value:.{digits}g}"


def _thinned(points: Points) -> Points:
    """Leaves out what is not finite, and of many points all but the extremes of each part, so that
    spikes stay."""
    kept = tuple((x, y) for x, y in points if math.isfinite(y))
    if len(kept) <= MOST:
        return kept
    each = math.ceil(2 * len(kept) / MOST)
    parts = [kept[start : start + each] for start in range(0, len(kept), each)]
    extremes = [sorted({min(part, key=HEIGHT), max(part, key=HEIGHT)}) for part in parts]
    return [kept[0], *(point for part in extremes for point in part), kept[-1]]


def _ticks(low: float, high: float, is_log: bool) -> list[tuple[float, str]]:
    """Returns some four round values with their labels; on a logarithmic axis low and high are
    logarithms."""
    if is_log:
        every = math.ceil((high - low) / 4)
        values = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1, every)]
    else:
        step = 10 ** math.floor(math.log10((high - low) / 4))
        step *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * step >= (high - low) / 5)
        values = [
            index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)
        ]
    labels = ([number(value, digits) for value in values] for digits in range(4, 17))
    names = next((names for names in labels if len(set(names)) == len(values)), [""] * len(values))
    return list(zip(values, names, strict=True))
