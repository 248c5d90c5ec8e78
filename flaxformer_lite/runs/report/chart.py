"""Draws line charts for an HTML page, as an SVG that stretches and labels that do not."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flaxformer_lite.runs.report.page import format_number, render_template

MAX_LINE_POINTS = 400  # most points of a line; of a longer one, the extremes of each part are drawn
MAX_MARKED_POINTS = 60  # most points of a line whose points are marked
LOGARITHMIC_RATIO = (
    20  # from this ratio of the largest value to the median on, the axis is logarithmic
)
HEIGHT = operator.itemgetter(1)
Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """A line of a chart.

    Attributes:
      points: (x, y) with ascending x; those that are not finite are dropped.
      color: a class of templates/base.html, such as "c0".
      dots: whether points are marked, if they are few; a single one always is.
    """

    label: str
    points: Points
    color: str
    dots: bool = False


def draw_chart(
    title: str,
    lines: Sequence[Line],
    last: float,
    *,
    level: tuple[str, float] | None = None,
    mark: tuple[str, float] | None = None,
    tall: bool = False,
) -> str:
    """Draws lines over steps as a <figure>.

    The y axis is logarithmic if a few large values would flatten all others.

    Args:
      lines: at least one of them has a finite point, or an empty string is returned.
      last: step where the horizontal axis ends; it begins at 0.
      level: name and value of a dashed horizontal line.
      mark: name and step of a vertical line.
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
    is_log = values[0] > 0 and values[-1] > LOGARITHMIC_RATIO * values[len(values) // 2]
    scale: Callable[[float], float] = float
    if is_log:
        scale = math.log10
    low = scale(values[0])
    high = scale(values[-1])
    margin = (high - low or abs(high) or 1) * 0.06
    low = low - margin
    high = high + margin

    # Places are percents of the chart, from its left and from its top.
    def across(x: float) -> str:
        return f"{100 * x / last:.4g}"

    def down(scaled: float) -> str:
        return f"{100 * (high - scaled) / (high - low):.4g}"

    def path(points: Points) -> str:
        return "L".join(f"{across(x)} {down(scale(y))}" for x, y in points)

    return render_template(
        "figure.html",
        title=title,
        is_log=is_log,
        tall=tall,
        lines=drawn,
        last=last,
        values=[_read_values(line) for line in drawn],
        dotted=MAX_MARKED_POINTS,
        level=level,
        mark=mark,
        across=across,
        path=path,
        x_ticks=[(across(x), name) for x, name in _ticks(0, last, False)],
        y_ticks=[(down(y), name) for y, name in _ticks(low, high, is_log)],
    )


def _read_values(line: Line) -> dict[str, object]:
    """Returns what templates/pointer.js reads of a line."""
    points = [(x, float(f"{y:.6g}")) for x, y in line.points]
    return {"label": line.label, "points": points}


def _thinned(points: Points) -> Points:
    """Drops points that are not finite; of many points it keeps the extremes of each part."""
    finite = tuple((x, y) for x, y in points if math.isfinite(y))
    if len(finite) <= MAX_LINE_POINTS:
        return finite
    size = math.ceil(2 * len(finite) / MAX_LINE_POINTS)
    kept = [finite[0]]
    for start in range(0, len(finite), size):
        part = finite[start : start + size]
        kept += sorted({min(part, key=HEIGHT), max(part, key=HEIGHT)})
    return [*kept, finite[-1]]


def _ticks(low: float, high: float, is_log: bool) -> list[tuple[float, str]]:
    """Returns about four places on an axis with the labels of their round values.

    On a logarithmic axis low, high and the places are logarithms.
    """
    if is_log:
        every = math.ceil((high - low) / 4)
        places = list(range(math.ceil(low), math.floor(high) + 1, every))
        return [(place, format_number(10.0**place)) for place in places]
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * step >= (high - low) / 5)
    multiples = range(math.ceil(low / step), math.floor(high / step) + 1)
    values = [multiple * step for multiple in multiples]
    for digits in range(4, 17):
        names = [format_number(value, digits) for value in values]
        if len(set(names)) == len(values):
            return list(zip(values, names, strict=True))
    return [(value, "") for value in values]
