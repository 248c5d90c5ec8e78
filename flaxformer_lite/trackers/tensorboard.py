"""Files for TensorBoard, in the workdir's tensorboard/."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flaxformer_lite.trackers import base


class Tracker(base.Tracker):
    def __init__(self, workdir: Path, config: Mapping[str, Any], last_step: int):
        import tensorboardX

        self._board = tensorboardX.SummaryWriter(str(workdir / "tensorboard"), purge_step=last_step + 1)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._board.close()
