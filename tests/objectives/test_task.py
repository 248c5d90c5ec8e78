"""Labels of rows and their numbers."""

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.task import index_of


def test_numbers_are_names_of_classes_or_their_places_but_not_both():
    assert [index_of(value, ("1", "2", "3"), "x") for value in (1, "2", 3)] == [0, 1, 2]
    with pytest.raises(ConfigError, match="the label '0' is not one of"):
        index_of(0, ("1", "2", "3"), "x")
    assert index_of(1, ("bad", "good"), "x") == index_of("1", ("bad", "good"), "x") == 1  # csv has texts only
    with pytest.raises(ConfigError, match="the label '2' is not one of"):
        index_of("2", ("bad", "good"), "x")
