"""The trainer by itself: a step of arithmetic, batches of numbers, callbacks."""

import jax
import numpy as np
import pytest

from flaxformer_lite.analysis.recompiles import RecompileCounter
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runs.trainer import Trainer


class Even(Callback):
    """Acts after every second step and the last, on the state that the step led to."""

    def __init__(self, calls):
        self.calls = calls

    def training_begins(self, step, state):
        self.calls.append(("begins", step, int(state)))

    def step_done(self, step, values, seconds):
        self.calls.append(("done", step, values["sum"]))

    def is_due(self, step, ends):
        return step % 2 == 0 or ends

    def act(self, step, state):
        self.calls.append(("acts", step, int(state)))

    def training_ends(self):
        self.calls.append("ends")


class EndsAfter(Callback):
    """Ends the run after a step."""

    def __init__(self, last):
        self.last = last

    def ends_run(self, step):
        return step >= self.last


def batches(count):
    rows = (np.full((1, 2), i, np.int32) for i in range(1, count + 1))
    return iter([{"inputs": {"input_ids": row}} for row in rows])


class Told(Callback):
    """Notes when steps begin and are known."""

    def __init__(self, *settled_after):
        self.settled_after = settled_after
        self.order = []

    def step_begins(self, step):
        self.order.append(f"begins {step}")

    def step_done(self, step, values, seconds):
        self.order.append(f"done {step}")


def trainer(*callbacks):
    @jax.jit
    def step(state, batch):
        state = state + batch["inputs"]["input_ids"][0, 0]
        return state, {"sum": state}

    return Trainer(step, callbacks, Clock(), RecompileCounter())


def test_a_callback_acts_when_its_step_has_ended_and_is_known():
    calls = []
    made = trainer(Even(calls))
    made.train(jax.numpy.int32(0), batches(3), start=0, last=3)
    two = [("done", 1, 1), ("done", 2, 3), ("acts", 2, 3)]
    assert calls == [("begins", 0, 0), *two, ("done", 3, 6), ("acts", 3, 6), "ends"]
    assert made.done == 3


@pytest.mark.parametrize(
    ("start", "last", "ends", "done"),
    [(0, 1, 100, 1), (0, 5, 100, 5), (4, 5, 100, 5), (3, 2, 100, 3), (0, 9, 0, 0)],
)
def test_a_run_ends_after_its_last_step_or_where_a_callback_has_had_enough(start, last, ends, done):
    made = trainer(EndsAfter(ends))
    made.train(jax.numpy.int32(0), batches(9), start=start, last=last)
    assert made.done == done


def test_a_callback_ends_the_run_and_those_behind_it_know():
    calls = []
    made = trainer(EndsAfter(3), Even(calls))
    made.train(jax.numpy.int32(0), batches(9), start=0, last=9)
    assert made.done == 3 and ("acts", 3, 6) in calls


def test_steps_that_must_settle_end_before_the_next_begins():
    told = Told(2)
    trainer(told).train(jax.numpy.int32(0), batches(9), start=0, last=5)
    assert told.order.index("done 2") < told.order.index("begins 3")
    assert told.order.index("begins 4") < told.order.index("done 3"), "others are dispatched ahead"


def test_data_that_end_early_are_an_error():
    with pytest.raises(RunError, match="data ended at step 3 of 9"):
        trainer().train(jax.numpy.int32(0), batches(2), start=0, last=9)


def test_the_seconds_of_a_step_are_without_pauses_and_unknown_of_the_first(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    clock = Clock()
    seconds = {}

    class Pausing(Callback):
        def step_done(self, step, values, took):
            seconds[step] = took

        def is_due(self, step, ends):
            return True

        def act(self, step, state):
            with clock.during("evaluation"):
                now[0] += 5.0
            now[0] += 0.1

    made = Trainer(lambda state, _: (state, {}), [Pausing()], clock, RecompileCounter())
    made.train(jax.numpy.int32(0), batches(9), start=0, last=3)
    assert seconds == {1: None, 2: pytest.approx(0.1), 3: pytest.approx(0.1)}


@pytest.mark.parametrize(("ahead", "second"), [(0, "done 1"), (2, "begins 2")])
def test_a_step_is_known_before_the_next_where_nothing_may_be_ahead(ahead, second):
    """A batch that is completed with the weights before its step waits for them anyway."""
    told = Told()

    def train_step(state, batch):
        return state, {}

    train_step.ahead = ahead
    made = Trainer(train_step, [told], Clock(), RecompileCounter())
    made.train(jax.numpy.int32(0), batches(9), start=0, last=3)
    assert told.order[:2] == ["begins 1", second]
