"""Calls rewards: with a limit of time, and one sentence for whatever goes wrong in one."""

import contextlib
import signal
import threading
import types
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json

Score = Callable[[Sequence[Json]], Sequence[float]]
SHOWN = 80  # most letters of an answer in a message


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
      ConfigError: the reward raises, takes too long, or returns anything but a finite number for
        each answer; says which reward and which answers.
    """
    score: Score = registry.resolve("rewards", name).score
    try:
        with _time_limit(seconds):
            returned = score(records)
    except _TooSlow:
        raise ConfigError(
            f"reward {name}: took more than objective.reward_seconds={seconds:g} for"
            f" {len(records)} answers; raise it, or make the reward faster."
        ) from None
    except Exception as error:
        raise ConfigError(_describe_failure(name, score, records, error)) from error
    return _checked(name, returned, records)


def _checked(name: str, returned: Sequence[float], records: Sequence[Json]) -> np.ndarray:
    try:
        values = np.asarray(returned, np.float32)
    except (TypeError, ValueError):
        values = np.zeros(0, np.float32)
    if values.shape != (len(records),):
        shape = f"{type(returned).__name__} of shape {np.shape(values)}"
        raise ConfigError(
            f"reward {name}: returned a {shape} for {len(records)} answers; return one number for"
            " each."
        )
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        first = int(wrong[0])
        raise ConfigError(
            f"reward {name}: is {values[first]} for {wrong.size} of {len(records)} answers, the"
            f" first of them {_shown(records[first])}; return a finite number."
        )
    return values


def _describe_failure(name: str, score: Score, records: Sequence[Json], error: Exception) -> str:
    """Asks for one answer at a time, to tell how many of them the reward fails for."""
    failed = []
    for record in records:
        try:
            score([record])
        except Exception:
            failed.append(record)
    what = str(error)
    if not isinstance(error, ConfigError):
        what = f"raised {type(error).__name__}: {what}"
    if not failed:
        return f"reward {name}: {what} (for {len(records)} answers at once, for none alone)"
    return (
        f"reward {name}: {what} (for {len(failed)} of {len(records)} answers, the first of them"
        f" {_shown(failed[0])})"
    )


def _shown(record: Json) -> str:
    return f"{record['written'][:SHOWN]!r} to {record['prompt'][-SHOWN:]!r}"


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
