"""Calls rewards: with a limit of time, and one sentence for whatever goes wrong in one."""

import contextlib
import signal
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import SupportsFloat

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json

Score = Callable[[Sequence[Json]], Sequence[float]]
SHOWN_CHARACTERS = 80  # most letters of an answer in a message
MAX_REWARD = 1e15  # squares of larger rewards are infinite in float32, and their advantages 0
FAILURES = (Exception, SystemExit)  # what a reward may raise; Ctrl-C still ends the run


class _TooSlow(BaseException):
    """A reward takes too long; no `except Exception` of its own holds it up."""


def call_reward(name: str, records: Sequence[Json], seconds: float) -> np.ndarray:
    """Returns the reward of each answer, float32 [N].

    Args:
      name: a file of this folder, or `module:function`.
      records: the answers, as the folder's docstring has them.
      seconds: after how long the call is given up. It is ended where it runs Python or waits, and
        only in the main thread, as signals are what ends it.

    Raises:
      ConfigError: the reward raises, takes too long, or returns anything but a number for each
        answer; says which reward and which answers.
    """
    score: Score = registry.resolve("rewards", name).score
    try:
        with _time_limit(seconds):
            returned = score(_copies(records))
    except _TooSlow:
        raise ConfigError(
            f"reward {name}: took more than objective.reward_seconds={seconds:g} for"
            f" {len(records)} answers; raise it, or make the reward faster."
        ) from None
    except FAILURES as error:
        raise ConfigError(_describe_failure(name, score, records, error, seconds)) from error
    return _checked(name, returned, records)


def _checked(name: str, returned: Sequence[float], records: Sequence[Json]) -> np.ndarray:
    values = np.asarray(returned, object)
    if values.shape != (len(records),):
        shape = f"{type(returned).__name__} of shape {values.shape}"
        raise ConfigError(
            f"reward {name}: returned a {shape} for {len(records)} answers; return one number for"
            " each."
        )
    wrong = [index for index, value in enumerate(values) if not _is_number(value)]
    if wrong:
        first = values[wrong[0]]
        raise ConfigError(
            f"reward {name}: is {str(first)[:SHOWN_CHARACTERS]} ({type(first).__name__}) for"
            f" {len(wrong)} of {len(records)} answers, the first of them"
            f" {_shown(records[wrong[0]])}; return a number from -{MAX_REWARD:g} to {MAX_REWARD:g}."
        )
    return values.astype(np.float32)


def _is_number(value: object) -> bool:
    # numbers of torch, jax and decimal too, but no text of a number, which a mistake returns
    if isinstance(value, (str, bytes)) or not isinstance(value, SupportsFloat):
        return False
    try:
        return abs(float(value)) <= MAX_REWARD
    except (TypeError, ValueError, OverflowError):
        return False


def _copies(records: Sequence[Json]) -> list[Json]:
    """Copies records, as a reward may change its own, and others read them."""
    return [dict(record) for record in records]


def _describe_failure(
    name: str, score: Score, records: Sequence[Json], error: BaseException, seconds: float
) -> str:
    """Asks for one answer at a time, to tell how many of them the reward fails for.

    It stops asking after as many seconds as the reward has for all.
    """
    failed = []
    with contextlib.suppress(_TooSlow), _time_limit(seconds):
        for record in records:
            try:
                score(_copies([record]))
            except FAILURES:
                failed.append(record)
    what = str(error).rstrip(".")
    if not isinstance(error, ConfigError):
        what = f"raised {type(error).__name__}: {what}"
    if not failed:
        return (
            f"reward {name}: {what} (for {len(records)} answers at once; asked for each alone, for"
            f" none within {seconds:g} seconds)"
        )
    return (
        f"reward {name}: {what} (for {len(failed)} of {len(records)} answers, the first of them"
        f" {_shown(failed[0])})"
    )


def _shown(record: Json) -> str:
    return f"{record['written'][:SHOWN_CHARACTERS]!r} to {record['prompt'][-SHOWN_CHARACTERS:]!r}"


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(number: int, frame: types.FrameType | None) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
