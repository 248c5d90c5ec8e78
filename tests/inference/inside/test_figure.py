"""Figures of attention maps."""

import numpy as np
import pytest

from flaxformer_lite.inference.inside.figure import mosaic, save_figure
from flaxformer_lite.inference.inside.summary import AttentionMaps
from tests.marks import daily

VISIBLE = np.broadcast_to(np.tri(3, dtype=bool), (2, 3, 3))
WEIGHTS = np.where(VISIBLE[:, None], np.random.default_rng(0).random((2, 4, 3, 3)), 0)
MAPS = AttentionMaps("decoder", "decoder", "decoder", (0, 1), WEIGHTS, VISIBLE)


def test_layers_go_down_and_heads_across():
    shown = mosaic(MAPS)
    assert shown.shape == (6, 12)
    np.testing.assert_array_equal(
        shown[3:6, 6:9][np.tri(3, dtype=bool)], WEIGHTS[1, 2][np.tri(3, dtype=bool)]
    )
    assert np.isnan(shown).sum() == 2 * 4 * 3, "what the mask hides"


@pytest.mark.parametrize(
    ("suffix", "magic"),
    daily([(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")], [(".png", b"\x89PNG")]),
)
def test_formats(tmp_path, suffix, magic):
    path = tmp_path / f"maps{suffix}"
    save_figure(path, [MAPS, MAPS], "a title " * 20)
    assert path.read_bytes().startswith(magic)
