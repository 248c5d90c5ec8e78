"""Checks before the first step.

A workdir has a single run, and all processes have the same config, code and data.
"""

import contextlib
import fcntl
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from flax.traverse_util import flatten_dict

from flaxformer_lite.checkpoints.workdir import is_workdir
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.config.mixture import is_source_path
from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.experiment import Experiment
from flaxformer_lite.runs.start import resume
from flaxformer_lite.runtime.processes import Processes
from flaxformer_lite.storage.lock import NAME, Lock, LockError
from flaxformer_lite.storage.objects import Objects, objects_at

# Fields that may differ between hosts; their content is compared instead.
OWN = ("data.path", "data.cache")
VISIBLE_SECONDS = 10  # seconds that a file of process 0 may take to appear on the other hosts


@contextlib.contextmanager
def lock_workdir(workdir: Path, group: Processes) -> Iterator[Lock | None]:
    """Locks a workdir, which all processes share, for one run.

    The lock is released when process 0 ends, even by SIGKILL.

    Yields:
      The lock of process 0 if the workdir is in an object store, where it must be renewed.

    Raises:
      RunError: another run has the lock, the workdir is not writable, or a process sees another
        folder.
    """
    token = secrets.token_hex(8)
    store = objects_at(workdir)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(_locked(workdir, store, token)) if group.first else None
        token = group.coordinate("the workdir", token, lambda tokens: tokens[0])
        is_visible = group.first or _is_visible(workdir, store, token)
        seen = group.coordinate("a sight of the workdir", is_visible, list)
        if not all(seen):
            raise RunError(
                f"--workdir={workdir}: process {seen.index(False)} does not see the folder that"
                " process 0 made; all processes need one that they share, on a network file system"
                " such as NFS, under the same path."
            )
        yield lock


def program_facts(cfg: ExperimentConfig) -> Json:
    """Collects what must be the same on all processes: config, code, libraries."""
    facts = {}
    for name, value in flatten_dict(resume.plain(cfg), sep=".").items():
        if name not in OWN and not is_source_path(name):
            facts[f"config.{name}"] = value
    return facts | resume.versions()


def data_facts(experiment: Experiment, steps: list[int]) -> Json:
    """Collects what a process reads: the fingerprint of its data, and the checkpoints it sees."""
    return {
        "the fingerprint of text and tokenizer": experiment.train_data.fingerprint,
        "examples": experiment.train_data.num_examples,
        "checkpoints": steps,
    }


@contextlib.contextmanager
def _locked(workdir: Path, store: Objects | None, token: str) -> Iterator[Lock | None]:
    _check_own(workdir, store)
    if store:
        try:
            with Lock(store, token) as held:
                yield held
        except LockError as error:
            raise RunError(str(error)) from None
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = open(workdir / NAME, "a+")  # noqa: SIM115
    except OSError as error:
        raise RunError(
            f"cannot write in {workdir}: {error.strerror}; choose another --workdir."
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"another run is writing to {workdir}; wait for it, or choose another --workdir."
            ) from None
        lock.truncate(0)
        lock.write(token)
        lock.flush()
        yield None


def _check_own(workdir: Path, store: Objects | None) -> None:
    """Refuses a directory of published weights, whose config.json a run would replace."""

    def has(name: str) -> bool:
        if store:
            return store.read(name) is not None
        return (workdir / name).exists()

    if has("config.json") and not is_workdir(workdir) and not has(NAME):
        raise RunError(
            f"--workdir={workdir}: holds a config.json that no run wrote, of published weights or"
            " a truncated one, which training would overwrite; choose another --workdir."
        )


def _is_visible(workdir: Path, store: Objects | None, token: str) -> bool:
    deadline = time.monotonic() + VISIBLE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if store:
                content = store.read(NAME) or b""
            else:
                content = (workdir / NAME).read_bytes()
            if token.encode() in content:
                return True
        time.sleep(0.2)
    return False
