"""The comparison of position encodings: its rows, its scores, its page, and a small run of two
encodings."""

import json

import numpy as np
import pytest

from benchmarks import positions, positions_page
from flaxformer_lite import registry
from flaxformer_lite.nn.positions.encoding import Encoding
from tests.training import tiny_runs


def test_every_encoding_of_the_package_is_compared():
    names = [subject.name for subject in positions.subjects()]
    assert len(set(names)) == len(names) and set(registry.available("positions")) <= set(names)


def test_both_lengths_are_of_the_same_tokens():
    ids = np.arange(3 * (positions.LONG + 1)).reshape(3, -1)
    short = positions.windows(ids)
    assert short.shape == (3 * positions.FACTOR, positions.LENGTH + 1)
    np.testing.assert_array_equal(np.sort(short[:, 1:].ravel()), np.sort(ids[:, 1:].ravel()))


def test_pictures_are_of_visible_positions_and_end_with_a_table():
    params = {"embed": {"position": {"position": np.eye(6, 8)}}}
    learned = np.asarray(positions_page.picture(_encoding("learned"), params, 10))
    np.testing.assert_array_equal(learned, np.where(np.tri(6, dtype=bool), np.eye(6), np.nan))
    for name in ("alibi", "rope", "sinusoidal", "binary", "index"):
        drawn = np.asarray(positions_page.picture(_encoding(name), {}, 10))
        assert drawn.shape == (10, 10) and np.isnan(drawn[0, 1:]).all()
        assert np.nanmax(np.abs(drawn)) == 1
    assert positions_page.picture(Encoding(), {}, 10) is None
    lowest = np.nanargmin(positions_page.picture(_encoding("alibi"), {}, 10))
    assert lowest == 90, "the farthest"


def _encoding(name):
    return registry.resolve_class("positions", name)()


@pytest.mark.nightly
def test_a_small_run_makes_the_page(tmp_path, capsys):
    page = tmp_path / "positions.md"
    page.write_text(f"before\n\n{positions_page.START}\nold\n{positions_page.END}\n\nafter\n")
    lines = [json.loads(line)["text"] for line in tiny_runs.text(tmp_path).read_text().splitlines()]
    (tmp_path / "text.txt").write_text("\n".join(lines * 3))
    places = {"text": "text.txt", "runs": "runs", "out": ""}
    flags = [f"--{name}={tmp_path}/{place}" for name, place in places.items()]
    positions.main(["--quick", "--only=learned", *flags])
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\n\nafter\n") and "old" not in text
    (row,) = json.loads((tmp_path / "positions/results.json").read_text())
    assert row["hooks"] == ["embed"]
    assert len(row["by_position"]) == positions.LENGTH // positions_page.BIN
    assert "the position table ends at max_length=64" in row["longer"] and 4 < row["same"] < 8
    table = text.split(positions_page.START)[1].strip().split("\n\n")[0]
    assert "refused" in table.splitlines()[-1] and table in capsys.readouterr().out
    for figure in ("loss", "encodings"):
        assert (tmp_path / f"positions/{figure}.png").stat().st_size > 5_000


def test_titles_of_the_encodings_lie_on_nothing(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(positions_page.pyplot, "close", figures.append)
    hooks = list(positions_page.MEANS)
    picture = np.eye(8).tolist()
    rows = [{"name": f"t5_{i}", "hooks": [hooks[0]], "picture": picture} for i in range(9)]
    positions_page.draw_encodings(tmp_path / "encodings.png", rows, 4)
    (figure,) = figures
    panels = figure.axes[: len(rows)]
    boxes = [panel.get_tightbbox() for panel in panels]
    for panel in panels:
        title = panel.title.get_window_extent().padded(6)  # pixels
        assert not [box for box in boxes if box.overlaps(title)][1:], panel.get_title()
