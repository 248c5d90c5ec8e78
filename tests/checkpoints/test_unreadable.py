"""A checkpoint that the system does not let us read is no damaged one: it stays where it is."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from flax.traverse_util import unflatten_dict

import flaxformer_lite
from flaxformer_lite.checkpoints import arrays, workdir
from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.checkpoints.record import FILE, UnreadableError, read_record
from flaxformer_lite.cli import failures
from tests.training import tiny_runs

ROOT = Path(__file__).parents[2]
REFUSALS = ("EACCES", "EPERM", "EIO", "ESTALE", "EMFILE", "ENFILE", "ENOMEM", "ETIMEDOUT")
# as tensorstore words it
TOLD = (
    'UNKNOWN: Error opening "zarr" driver: Error reading local file "{file}": Failed to open:'
    ' "{file}": {why} [os_error_code=\'{number}\'] [tensorstore_spec=\'{{"driver":"zarr"}}\']'
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("run")
    cfg = tiny_runs.config(folder, train={"steps": 2, "checkpoint_every": 1})
    flaxformer_lite.run(cfg, folder / "run")
    return folder / "run"


def target(folder):
    """Returns the shapes of the state, as the record of its first checkpoint has them."""
    leaves = read_record(folder / "checkpoints/1")["leaves"]
    flat = {path: jax.ShapeDtypeStruct(shape, dtype) for path, (dtype, shape, _) in leaves.items()}
    return unflatten_dict(flat, sep="/")


def restore(folder, shapes):
    with Checkpoints(folder / "checkpoints", keep=3) as checkpoints:
        return checkpoints.restore(lambda record: shapes)


READERS = {
    "restore": restore,
    "read_run": lambda folder, _: workdir.read_run(folder),
    "read_state": lambda folder, shapes: workdir.read_state(folder, lambda record: shapes, 2),
}


def refuse_record(monkeypatch, number):
    """Lets the system refuse to open a record."""
    opened = os.open

    def refuse(path, *options, **more):
        if str(path).endswith(FILE):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *options, **more)

    monkeypatch.setattr(os, "open", refuse)
    return FILE


def refuse_array(monkeypatch, number):
    """Lets tensorstore answer as if the system refused to open a file of the state."""
    told = TOLD.format(file="/there/state/d/0a1b", why=os.strerror(number), number=number)

    def refuse(base, target):
        raise ValueError(told)

    monkeypatch.setattr(arrays, "_read", refuse)
    return "/there/state/d/0a1b"


@pytest.mark.parametrize("refusal", [refuse_record, refuse_array])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_of_the_system_is_no_damage(name, reader, refusal, run, monkeypatch):
    number = getattr(errno, name)
    shapes = target(run)
    before = sorted(path for path in (run / "checkpoints").rglob("*"))
    with monkeypatch.context() as patch:
        file = refusal(patch, number)
        with pytest.raises(UnreadableError) as error:
            READERS[reader](run, shapes)
    message, code = failures.explain(error.value)
    assert code == 1 and f"{file}: cannot be read ({os.strerror(number)})" in message
    assert "delete" not in message and message.count("\n") == 0
    assert sorted(path for path in (run / "checkpoints").rglob("*")) == before


@pytest.mark.parametrize("missing", [FILE, "state/manifest.ocdbt"])
def test_a_missing_file_still_is_damage(missing, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/checkpoints/2" / missing).unlink()
    read = workdir.read_run(tmp_path / "run")
    assert read.step == 1 and "step 2 cannot be read" in read.notices[0]


# Makes the permissions of files count for root too, which loses two capabilities.
WITHOUT_ROOT = """
import ctypes, os, sys

for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
SCRIPT = """
import sys
from pathlib import Path
from tests.checkpoints import test_unreadable

run = Path(sys.argv[1])
shapes = test_unreadable.target(run)
for name in sys.argv[2:]:
    path = run / "checkpoints" / name
    mode = path.stat().st_mode
    path.chmod(0)
    for read in test_unreadable.READERS.values():
        try:
            read(run, shapes)
            print(name, "was read")
        except Exception as error:
            print(name, type(error).__name__, error)
    path.chmod(mode)
"""


def test_permissions_of_each_file_and_folder(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    at = tmp_path / "run/checkpoints/2"
    data = next(path for path in (at / "state").rglob("d/*"))
    names = ["2", "2/state", "2/state/manifest.ocdbt", f"2/{FILE}", f"2/{data.relative_to(at)}"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOT, "-c", SCRIPT, tmp_path / "run", *names],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    said = done.stdout.splitlines()
    assert len(said) == len(READERS) * len(names), done.stderr[-2000:]
    for line in said:
        assert "UnreadableError" in line and "cannot be read (Permission denied)" in line, line
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == ["1", "2"]


def test_the_folder_of_all_checkpoints(run, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(UnreadableError, match=r"best: cannot be read \(Permission denied\)"):
        workdir.read_run(run)
