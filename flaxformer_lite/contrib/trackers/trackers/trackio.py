"""Trackio: a local database, shown by `trackio show`.

It is configured by its own environment variables, such as TRACKIO_SPACE_ID.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.trackers import base


class Tracker(base.Tracker):
    requires = "trackio"

    def __init__(self, workdir: Path, config: Json, last_step: int):
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "flaxformer_lite"),
            name=workdir.name,
            config=dict(config),
            resume="never" if last_step < 0 else "allow",
            embed=False,
        )

    def add(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
