"""Predictions of the starting weights for each example, for objectives that compare with them."""

import io
import zipfile
from pathlib import Path

import numpy as np

from flaxformer_lite.files.publish import write_file
from flaxformer_lite.runs.experiment import Experiment
from flaxformer_lite.training.state import TrainState

FILE = "reference.npz"  # in the workdir


def attach(
    experiment: Experiment,
    state: TrainState,
    start: int,
    workdir: Path,
    *,
    writes: bool,
) -> Experiment:
    """Adds the predictions of the starting weights to the examples, if the objective needs them.

    They are computed once, before the first step, and read from the workdir when the run resumes;
    if they are gone, the starting weights are created again.

    Args:
      state: the state, which has the starting weights if `start` is 0.
      start: number of steps done.
    """
    name = experiment.cfg.objective.reference
    splits = experiment.train_data.splits
    if not name:
        return experiment
    predictions = _read(workdir / FILE) if start else {}
    stored_sizes = {split: len(values) for split, values in predictions.items()}
    sizes = {split: len(records) for split, records in splits.items()}
    if stored_sizes != sizes:
        params = state.params
        if start:
            params = experiment.recreate_state().params
        predictions = {split: experiment.predict(split, params, name) for split in splits}
        if writes:
            file = io.BytesIO()
            np.savez(file, **predictions)  # type: ignore[arg-type]  # the stubs see options
            write_file(workdir / FILE, file.getvalue())
    return experiment.with_reference(predictions)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as kept:
            return dict(kept)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):  # missing or damaged
        return {}
