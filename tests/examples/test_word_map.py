import numpy as np

from examples import word_map
from tests.cli import models
from tests.pretrained.test_word_vectors import PLACES, made


def test_distances_on_the_plane_are_at_most_those_between_vectors_and_mostly_kept():
    words = ["paris", "france", "london", "england", "queen"]
    unit = np.stack([np.asarray(PLACES[word]) / np.linalg.norm(PLACES[word]) for word in words])
    places = word_map.plane(made(PLACES), words)
    far, shown = (np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (unit, places))
    assert places.shape == (5, 2) and (shown <= far + 1e-6).all()
    assert (shown**2).sum() > 0.95 * (far**2).sum()


def test_a_picture(tmp_path):
    picture = tmp_path / "words.png"
    word_map.main(models.directory(tmp_path / "gpt2"), picture, "one", "two", "three")
    assert picture.read_bytes().startswith(b"\x89PNG")
