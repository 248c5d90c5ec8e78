"""Sends a run's records to the trackers of `train.trackers`."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flaxformer_lite import registry
from flaxformer_lite.checkpoints.manager import first_line
from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.rules import format_value
from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.trackers.base import Tracker


def check_installed(names: Sequence[str]) -> None:
    """Refuses trackers whose package is not installed.

    Raises:
      ConfigError: names the package.
    """
    for name in names:
        needed = registry.resolve("trackers", name).Tracker.requires
        if needed and importlib.util.find_spec(needed) is None:
            package = needed
            if name in registry.available("trackers"):
                package = f"flaxformer_lite[{name}]"
            raise ConfigError(
                f"train.trackers={format_value(tuple(names))}: {name} needs {needed}; pip install"
                f" '{package}', or leave it out."
            )


class Tracking(Callback):
    """Opens trackers and sends them records; one that fails is dropped with a notice.

    Args:
      names: names of plug-ins of trackers/, or `module:Class`.
    """

    def __init__(
        self,
        names: Sequence[str],
        note: Callable[[str], None],
        workdir: Path,
        config: Json,
        last_step: int,
    ):
        self._open: dict[str, Tracker] = {}
        self._note = note
        for name in names:
            with self._optional(name):
                self._open[name] = registry.resolve("trackers", name).Tracker(
                    workdir, config, last_step
                )

    def recorded(self, record: Json) -> None:
        values = {}
        for key, value in record.items():
            if key not in ("step", "split"):
                values[f"{record['split']}/{key}"] = value
        # A copy, as `_optional` removes a tracker that fails.
        for name, tracker in list(self._open.items()):
            with self._optional(name):
                tracker.add(record["step"], values)

    def close(self) -> None:
        for name, tracker in list(self._open.items()):
            with self._optional(name):
                tracker.close()

    @contextlib.contextmanager
    def _optional(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._open.pop(name, None)
            self._note(
                f"notice: train.trackers: {name} failed ({first_line(error)}); the run continues"
                " without it."
            )
