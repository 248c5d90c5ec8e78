"""The loop over steps. It knows a step, a state and batches; all else is a callback."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from flaxformer_lite.analysis.recompiles import RecompileCounter
from flaxformer_lite.objectives.rows import packed_shape
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.report.clock import Clock, seconds_in_steps
from flaxformer_lite.training.state import TrainState
from flaxformer_lite.types import Batch

# Steps dispatched before the host reads a result, so that neither the host nor the devices wait
# for the other. A step that says otherwise has an attribute `ahead`.
STEPS_AHEAD = 2
Metrics = Mapping[str, jax.Array | float]
TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


class Trainer:
    """Runs steps and tells its callbacks of each, in their order.

    Args:
      train_step: the step, (state, batch) -> (state, metrics); it may donate the state.
      callbacks: all that happens between steps: evaluations, checkpoints, records, messages.
      clock: measures the time in steps.
      compiles: counts compilations after the second step.

    Attributes:
      done: the number of steps whose results are known.
    """

    def __init__(
        self,
        train_step: TrainStep,
        callbacks: Sequence[Callback],
        clock: Clock,
        compiles: RecompileCounter,
    ):
        self._train_step = train_step
        self._callbacks = callbacks
        self._clock = clock
        self._compiles = compiles
        self._ahead: int = getattr(train_step, "ahead", STEPS_AHEAD)
        self._in_flight: collections.deque[tuple[int, Metrics]] = collections.deque()
        self._ended: float | None = None  # seconds in steps at the end of the last step
        self.done = 0

    def train(self, state: TrainState, batches: Iterator[Batch], start: int, last: int) -> None:
        """Runs the steps start + 1 .. last, or until a callback ends the run.

        Args:
          state: the state after step `start`.
          batches: the batch of each step from start + 1 on.
          start: number of steps already done.
          last: number of the last step.

        Raises:
          RunError: there are fewer batches than steps, or a callback says why the run cannot go on.
        """
        self.done = start
        self._clock.turn_to("steps")
        for callback in self._callbacks:
            callback.training_begins(start, state)
        settled = set[int]()
        for callback in self._callbacks:
            settled |= set(callback.settled_after)
        ends = start >= last
        for callback in self._callbacks:
            # Every callback is asked, as processes may meet in it.
            if callback.ends_run(start):
                ends = True
        step = start
        while not ends:
            step += 1
            state = self._dispatch(state, batches, step, last, is_first=step == start + 1)
            self._settle(0 if step in settled else self._ahead)
            if step == start + 2:
                self._compiles.start()
            ends = step == last
            for callback in self._callbacks:
                if callback.is_due(step, ends):
                    # What acts after a step, such as a checkpoint's record, needs the results of
                    # all steps up to it.
                    self._settle(0)
                    callback.act(step, state)
                if callback.ends_run(step):
                    ends = True
        self._settle(0)
        self._clock.turn_to("other")
        for callback in reversed(self._callbacks):  # as contexts end
            callback.training_ends()

    def _dispatch(
        self, state: TrainState, batches: Iterator[Batch], step: int, last: int, is_first: bool
    ) -> TrainState:
        """Starts a step on the devices, and returns the state that it will lead to."""
        with self._clock.during("data"):
            batch = next(batches, None)
        if batch is None:
            raise RunError(
                f"data ended at step {step} of {last}; was a file truncated during the run?"
            )
        for callback in self._callbacks:
            callback.step_begins(step)
        part = "steps"
        if is_first:
            part = "compile"
        new_shape = f"a step packed in {packed_shape(batch)}"
        with self._clock.during(part), self._compiles.allow_first(new_shape):
            state, metrics = self._train_step(state, batch)
        self._in_flight.append((step, metrics))
        for callback in self._callbacks:
            callback.step_dispatched(step)
        return state

    def _settle(self, ahead: int) -> None:
        """Waits for the results of steps until at most `ahead` are in flight."""
        while len(self._in_flight) > ahead:
            step, metrics = self._in_flight.popleft()
            with self._clock.during("devices"):
                values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            before = self._ended
            self._ended = seconds_in_steps(self._clock.read())
            seconds = None
            if before is not None:
                seconds = self._ended - before
            for callback in self._callbacks:
                callback.step_done(step, values, seconds)
            self.done = step
