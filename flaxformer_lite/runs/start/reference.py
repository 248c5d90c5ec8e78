"""Predictions of the starting weights for each example, for objectives that compare with it."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flaxformer_lite.files.publish import write_file
from flaxformer_lite.runs.start.setup import Experiment
from flaxformer_lite.training.state import TrainState

FILE = "reference.npz"  # in the workdir


def attach(
    experiment: Experiment,
    state: TrainState,
    start: int,
    make: Callable[[], TrainState],
    workdir: Path,
    *,
    writes: bool,
) -> Experiment:
    """Returns the experiment with the predictions of its starting weights beside the examples, if
    it needs them.

    They are computed once, before the first step, and read from the workdir when the run resumes;
    if they are gone, the starting weights are made again.

    Args:
      state: its state, which has the starting weights if `start` is 0.
      start: the steps that are done.
      make: makes the starting weights.
    """
    name = experiment.cfg.objective.reference
    splits = experiment.train_data.splits
    if not name:
        return experiment
    found = _read(workdir / FILE) if start else {}
    if {split: len(values) for split, values in found.items()} != {
        split: len(part) for split, part in splits.items()
    }:
        params = make().params if start else state.params
        found = {split: experiment.predict(split, params, name) for split in splits}
        if writes:
            file = io.BytesIO()
            np.savez(file, **found)  # type: ignore[arg-type]  # the stubs take the arrays for options
            write_file(workdir / FILE, file.getvalue())
    return experiment.with_reference(found)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as kept:
            return dict(kept)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):  # missing or damaged
        return {}
