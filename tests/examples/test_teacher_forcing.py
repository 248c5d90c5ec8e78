"""The loss of a text in one pass equals that of reading it step by step, for a recurrence and for
attention."""

import jax
import pytest

from examples import teacher_forcing


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["LSTM", "transformer"])
def test_the_loss_in_one_pass_is_that_step_by_step(name):
    with jax.numpy_rank_promotion("allow"):
        whole, steps, _, _ = teacher_forcing.losses(teacher_forcing.MODELS[name], 12)
    assert whole == pytest.approx(steps, rel=1e-5) and 4 < whole < 8
