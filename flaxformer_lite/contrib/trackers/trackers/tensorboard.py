"""Files for TensorBoard, in the workdir's tensorboard/."""

import time
from collections.abc import Mapping
from pathlib import Path

from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.trackers import base


class Tracker(base.Tracker):
    """Writes each record at once.

    On a full disk, tensorboardX's own thread would die and the run wait for it forever.
    """

    requires = "tensorboardX"

    def __init__(self, workdir: Path, config: Json, last_step: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder = workdir / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"))
        self._event = Event
        # TensorBoard drops later steps that it already has.
        self._write(last_step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboardX.summary import scalar

        for name, value in values.items():
            self._write(step, summary=scalar(name, value))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, **content: object) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), step=step, **content))
