"""Letters of a call are one size each, or the call is named."""

import numpy as np
import pytest

from tests.axis_letters import checked


def mix(q_BTNH, k_BSNH, v_BSKH=None, scale=None, norm_1N11=None):
    return q_BTNH


def ones(*shape):
    return np.ones(shape)


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((ones(2, 3, 4, 8), ones(2, 5, 4, 7)), {}, "mix: H is 7 in k_BSNH, and 8 in q_BTNH"),
        ((ones(2, 3, 8), ones(2, 5, 4, 8)), {}, r"q_BTNH has the shape \(2, 3, 8\)"),
        (
            (ones(2, 3, 4, 8), ones(2, 5, 4, 8)),
            {"norm_1N11": ones(2, 4, 1, 1)},
            "norm_1N11 has the shape",
        ),
    ],
)
def test_a_letter_of_two_sizes_is_named(arguments, named, message):
    with pytest.raises(AssertionError, match=message):
        checked(mix)(*arguments, **named)


def test_what_broadcasts_and_values_of_another_width_are_fine():
    checked(mix)(ones(2, 3, 4, 8), ones(1, 5, 4, 8), v_BSKH=ones(2, 5, 2, 3), scale=ones(7))
