"""The beginning of a run: its newest checkpoint or a new state, and its frozen base."""

from flaxformer_lite.checkpoints import frozen_base
from flaxformer_lite.checkpoints.frozen_base import Base, read_base, write_base
from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.checkpoints.mirror import Mirror
from flaxformer_lite.files.read import Json
from flaxformer_lite.model_folder import fixed_address, is_workdir, on_disk
from flaxformer_lite.runs.experiment import Begin, Experiment
from flaxformer_lite.runs.start import resume
from flaxformer_lite.runs.start.referenced_weights import complete_state, copy_base, describe
from flaxformer_lite.runtime.processes import Processes
from flaxformer_lite.training.state import TrainState


def begin_run(
    experiment: Experiment, checkpoints: Checkpoints, mirror: Mirror, group: Processes
) -> Begin:
    """Restores the newest checkpoint, or creates a new state.

    Raises:
      ConfigError: the config may not continue the run, or its frozen weights are not there.
      CheckpointError: no checkpoint can be read, or the frozen weights are others.
    """
    cfg = experiment.cfg

    def saved_target(record: Json) -> TrainState:
        base = _base_of(record, mirror)
        resume.check(record, cfg, experiment.train_data.fingerprint, base)
        program = experiment.with_base(base).program
        return program.saved(program.target)

    restored = checkpoints.restore(saved_target)
    if restored is None:
        return _begin_anew(experiment, mirror, group)
    notices = [*restored.notices, *resume.notices(restored.meta, cfg)]
    if restored.step >= cfg.train.steps:
        notices.append(
            f"step {restored.step} is done and train.steps={cfg.train.steps}: nothing is left to"
            " train."
        )
    base = _base_of(restored.meta, mirror)
    experiment = experiment.with_base(base)
    state = complete_state(experiment.program, restored.state, base, mirror.folder)
    if base is not None and experiment.program.frozen_base:
        experiment = _keep_base(experiment, state, base, mirror, group)
    return Begin(experiment, state, restored.step, restored.meta, notices)


def _begin_anew(experiment: Experiment, mirror: Mirror, group: Processes) -> Begin:
    init_from = experiment.cfg.train.init_from
    first = experiment.create_state(init_from)
    kept = "reference"
    # A workdir's weights are replaced while its run goes on.
    if first.unchanged and is_workdir(on_disk(init_from, weights=False)):
        kept = experiment.cfg.train.base or "copy"
    base = describe(experiment.program, first.state, first.unchanged, kept)
    experiment = experiment.with_base(base)
    if base is not None:
        experiment = _keep_base(experiment, first.state, base, mirror, group, is_new=True)
    return Begin(experiment, first.state, 0, {}, [])


def _base_of(record: Json, mirror: Mirror) -> Base | None:
    return read_base(mirror.folder, record.get("base", ""))


def _keep_base(
    experiment: Experiment,
    state: TrainState,
    base: Base,
    mirror: Mirror,
    group: Processes,
    *,
    is_new: bool = False,
) -> Experiment:
    """Describes the frozen base in the workdir, and copies it there if `train.base` asks for it.

    Returns:
      The experiment with what the workdir now says: the folder may have been moved.
    """
    train = experiment.cfg.train
    now = base
    if experiment.program.frozen_base and train.init_from != base.init_from:
        now = now._replace(init_from=train.init_from, source=fixed_address(train.init_from))
    if experiment.program.frozen_base and train.base == "copy":
        now = now._replace(kept="copy")
    # The copy first: base.json must not name one that is not there.
    if now.kept == "copy" and (is_new or base.kept != "copy"):
        folder = mirror.place / frozen_base.FOLDER
        with Checkpoints(folder, keep=1, group=group, before=mirror.send) as checkpoints:
            copy_base(experiment.program, state, checkpoints)
    if group.first and (is_new or now != base):
        write_base(mirror.folder, now)
    return experiment.with_base(now)
