"""Labels of rows and their numbers."""

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.tables.task import index_of, names_of, number_of


def test_numbers_are_names_of_classes_or_their_places_but_not_both():
    assert [index_of(value, ("1", "2", "3"), "x") for value in (1, "2", 3)] == [0, 1, 2]
    with pytest.raises(ConfigError, match="has the label '0', only"):
        index_of(0, ("1", "2", "3"), "x")
    # csv has texts only
    assert index_of(1, ("bad", "good"), "x") == index_of("1", ("bad", "good"), "x") == 1
    with pytest.raises(ConfigError, match="has the label '2', only"):
        index_of("2", ("bad", "good"), "x")


def test_names_that_only_look_like_numbers_are_in_the_order_of_texts():
    assert names_of(["10", "-2", "9"]) == ("-2", "9", "10")
    assert names_of(["--3", "4", "10"]) == ("--3", "10", "4")
    assert names_of(["9" * 5000, "1"]) == ("1", "9" * 5000)
    assert names_of(["1" * 20, "2" * 19]) == ("2" * 19, "1" * 20)
    with pytest.raises(ConfigError, match=r"has the label '9999.*', only"):
        index_of("9" * 5000, ("bad", "good"), "x")


@pytest.mark.parametrize("value", [None, "1e39"])
def test_a_number_is_one_that_float32_holds(value):
    with pytest.raises(ConfigError, match=r"row 3: score=.*not a number.*float32"):
        number_of({"score": value}, "score", 2)
