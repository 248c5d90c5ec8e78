"""Draws line charts for an HTML page, as an SVG that stretches and labels that do not."""

import html
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

MOST = 400  # most points of a line; of a longer one, the extremes of each part are drawn
DOTTED = 60  # most points of a line whose points are marked
SPREAD = 20  # from this ratio of the largest value to the median on, the axis is logarithmic
SIZE = 1000  # width and height in the SVG's coordinates
HEIGHT = operator.itemgetter(1)
Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """A line of a chart.

    Attributes:
      points: (x, y) with ascending x; those that are not finite are dropped.
      color: a class of page.py, such as "c0".
      dots: whether points are marked, and labelled under the pointer, if they are few; a single one
        always is.
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
    """Draws lines over steps as a <figure>.

    The y axis is logarithmic if a few large values would flatten all others.

    Args:
      lines: at least one of them has a finite point, or an empty string is returned.
      last: step where the horizontal axis ends; it begins at 0.
      level: name and value of a dashed horizontal line.
      tall: whether this is the page's main chart.
    """
    drawn = []
    for line in lines:
        points = _thinned(line.points)
        if points:
            drawn.append(line._replace(points=points))
    if not drawn:
        return ""
    last = last or 1.0
    values = [y for line in drawn for _, y in line.points]
    if level:
        values.append(level[1])
    values.sort()
    is_log = values[0] > 0 and values[-1] > SPREAD * values[len(values) // 2]
    scale: Callable[[float], float] = float
    if is_log:
        scale = math.log10
    low = scale(values[0])
    high = scale(values[-1])
    margin = (high - low or abs(high) or 1) * 0.06
    low = low - margin
    high = high + margin

    def height(y: float) -> float:
        """Returns the share of the chart below the top."""
        return (high - scale(y)) / (high - low)

    def coordinates(x: float, y: float) -> str:
        return f"{SIZE * x / last:.4g} {SIZE * height(y):.4g}"

    rows = [(100 * height(y), name) for y, name in _ticks(low, high, is_log)]
    parts = []
    for top, _ in rows:
        parts.append(f'<path class="grid" d="M0 {10 * top:.4g}H{SIZE}"/>')
    key = []
    for line in drawn:
        key.append(f'<span class="key {line.color}">{html.escape(line.label)}</span>')
    if level:
        parts.append(f'<path class="level" d="M{coordinates(0, level[1])}H{SIZE}"/>')
        key.append(f'<span class="key level">{html.escape(level[0])}, {number(level[1])}</span>')
    for line in drawn:
        path = "L".join(coordinates(x, y) for x, y in line.points)
        parts.append(f'<path class="{line.color}" d="M{path}"/>')
        is_marked = line.dots and len(line.points) <= DOTTED
        if not is_marked and len(line.points) > 1:  # a line of one point could not be seen
            continue
        for x, y in line.points:
            name = f"<title>step {x:g}: {y:.6g}</title>"
            parts.append(f'<path class="dot {line.color}" d="M{coordinates(x, y)}h0">{name}</path>')
    parts = [f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none">{"".join(parts)}</svg>']
    for top, name in rows:
        parts.append(f'<span class="y" style="top:{top:.4g}%">{name}</span>')
    for x, name in _ticks(0, last, False):
        parts.append(f'<span class="x" style="left:{100 * x / last:.4g}%">{name}</span>')
    caption = f"<b>{html.escape(title)}</b>"
    if is_log:
        caption += " (logarithmic)"
    if len(key) > 1:
        caption += "".join(key)
    kind = ""
    if tall:
        kind = " class=tall"
    plot = f'<div class="plot">{"".join(parts)}</div>'
    return f"<figure{kind}><figcaption>{caption}</figcaption>{plot}</figure>"


def number(value: float, digits: int = 4) -> str:
    """Formats a number on an axis: 0.25, 12k, 3M, 3e-08."""
    for least, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:.{digits}g}{name}"
    return f"{value:.{digits}g}"


def _thinned(points: Points) -> Points:
    """Drops points that are not finite; of many points it keeps the extremes of each part."""
    finite = tuple((x, y) for x, y in points if math.isfinite(y))
    if len(finite) <= MOST:
        return finite
    size = math.ceil(2 * len(finite) / MOST)
    kept = [finite[0]]
    for start in range(0, len(finite), size):
        part = finite[start : start + size]
        kept += sorted({min(part, key=HEIGHT), max(part, key=HEIGHT)})
    return [*kept, finite[-1]]


def _ticks(low: float, high: float, is_log: bool) -> list[tuple[float, str]]:
    """Returns about four round values with their labels.

    On a logarithmic axis low and high are logarithms.
    """
    if is_log:
        every = math.ceil((high - low) / 4)
        values = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1, every)]
    else:
        step = 10 ** math.floor(math.log10((high - low) / 4))
        step *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * step >= (high - low) / 5)
        multiples = range(math.ceil(low / step), math.floor(high / step) + 1)
        values = [multiple * step for multiple in multiples]
    for digits in range(4, 17):
        names = [number(value, digits) for value in values]
        if len(set(names)) == len(values):
            return list(zip(values, names, strict=True))
    return [(value, "") for value in values]
