"""Weights & Biases, configured by its own environment variables (WANDB_PROJECT, WANDB_MODE)."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.trackers import base


class Tracker(base.Tracker):
    requires = "wandb"

    def __init__(self, workdir: Path, config: Json, last_step: int):
        import wandb

        known = workdir / "wandb-id.txt"
        if last_step < 0 or not known.exists():
            known.write_text(os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "flaxformer_lite"),
            id=known.read_text().strip(),
            name=workdir.name,
            dir=str(workdir),
            config=dict(config),
            resume="allow",
            settings=wandb.Settings(console="off"),  # it would record the bar every second
        )
        # its own counter refuses the steps that a restart repeats
        self._run.define_metric("*", step_metric="step")

    def add(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()
