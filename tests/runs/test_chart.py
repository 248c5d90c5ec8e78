import html
import json
import math
import re

from flaxformer_lite.runs.report.chart import MAX_LINE_POINTS, MAX_MARKED_POINTS, Line, draw_chart
from flaxformer_lite.runs.report.page import format_number


def drawn(svg, color):
    """The points of a line, as shares of the plot's width and height from its top left corner."""
    path = re.search(rf'<path class="{color}" d="M([^"]*)"', svg)[1]
    return [tuple(float(part) / 100 for part in point.split()) for point in path.split("L")]


def labels(svg, axis):
    found = re.findall(rf'<span class="{axis}" style="\w+:([\d.]+)%">([^<]*)<', svg)
    return {text: float(place) / 100 for place, text in found}


def line(values, every=1, **options):
    return Line("held out", [(every * i, y) for i, y in enumerate(values)], "c0", **options)


def test_points_lie_where_the_labels_of_the_axes_say():
    svg = draw_chart("loss", [line([4.0, 3.0, 2.0], every=50)], 100.0)
    (_, top), (middle, center), (right, bottom) = drawn(svg, "c0")
    assert (middle, right) == (0.5, 1.0) and top < center < bottom
    across = labels(svg, "x")
    assert (labels(svg, "y")["3"], across["20"], across["100"]) == (center, 0.2, 1.0)


def test_a_few_huge_values_make_the_axis_logarithmic_and_a_schedule_does_not():
    svg = draw_chart("perplexity", [line([30_000.0, 300.0, 40.0, 30.0, 30.0])], 4.0)
    names = labels(svg, "y")
    assert "(logarithmic)" in svg and {"100", "1000", "10k"} <= set(names)
    heights = [y for _, y in drawn(svg, "c0")]
    half = (heights[1] - heights[0]) / 2
    assert math.isclose(half, names["100"] - names["1000"], abs_tol=0.002)
    warm = [min(n / 100, 1) * (0.1 + 0.9 * math.cos(n / 700)) * 1e-3 for n in range(1, 1000)]
    assert "(logarithmic)" not in draw_chart("rate", [line(warm)], 1000.0)


def test_labels_of_close_values_differ():
    names = labels(draw_chart("norm", [line([12.5901, 12.5904, 12.5909])], 2.0), "y")
    assert len(names) > 2 and all(12.59 < float(name) < 12.592 for name in names)


def test_many_points_become_few_and_keep_their_spikes():
    values = [1.0] * 10_000
    values[7_321] = 9.0
    points = drawn(draw_chart("norm", [line(values)], 9_999.0), "c0")
    assert len(points) <= MAX_LINE_POINTS + 2
    highest = min(points, key=lambda point: point[1])
    assert abs(highest[0] - 0.7321) < 0.001 and sum(point[1] == highest[1] for point in points) == 1


def test_points_are_marked_unless_there_are_too_many():
    assert draw_chart("loss", [line([1.0, 0.5, 0.125], dots=True)], 2.0).count("dot c0") == 3
    assert "dot" not in draw_chart("loss", [line([1.0] * (MAX_MARKED_POINTS + 1), dots=True)], 60.0)
    # a line of a single value could not be seen
    assert draw_chart("rate", [line([0.25])], 20.0).count("dot c0") == 1
    assert "dot" not in draw_chart("rate", [line([0.25, 0.5])], 20.0)


def test_the_pointer_reads_the_values_of_the_records():
    svg = draw_chart("loss", [line([1.0, math.nan, 1 / 3])], 2.0)
    (values,) = json.loads(html.unescape(re.search('data-lines="(.*?)"', svg)[1]))
    assert values == {"label": "held out", "points": [[0, 1.0], [2, 0.333333]]}
    assert 'data-last="2.0"' in svg


def test_values_that_are_not_finite_equal_or_alone_are_no_trouble():
    assert len(drawn(draw_chart("loss", [line([1.0, math.nan, math.inf, 2.0])], 3.0), "c0")) == 2
    assert draw_chart("loss", [line([math.nan])], 1.0) == "" == draw_chart("loss", [], 1.0)
    for values in ([0.0], [0.0, 0.0], [5.0, 5.0], [-1e300, 1e300], [1e-12, 2e-12]):
        svg = draw_chart("loss", [line(values)], float(len(values) - 1))
        assert all(0 <= place <= 1 for _, place in drawn(svg, "c0"))


def test_names_are_text_and_a_level_is_dashed():
    svg = draw_chart("<b>", [line([1.0, 2.0])._replace(label="<i>")], 1.0, level=("<u>", 1.5))
    for name in ("<b>", "<i>", "<u>"):
        assert html.escape(name) in svg and name not in svg.replace("<b>&lt;b&gt;</b>", "")
    assert 'class="level"' in svg and "1.5" in svg


def test_a_mark_stands_at_its_step_and_is_named():
    svg = draw_chart("loss", [line([2.0, 1.0], every=50)], 100.0, mark=("best, after 25", 25))
    assert 'd="M25 0V100"' in svg and "best, after 25<" in svg


def test_numbers_are_short():
    shown = [format_number(v) for v in (0.0, 0.25, -3.0, 9999.0, 12_000.0, 2.5e6, 3e9, 3e-4, 1e-8)]
    assert shown == ["0", "0.25", "-3", "9999", "12k", "2.5M", "3G", "0.0003", "1e-08"]
