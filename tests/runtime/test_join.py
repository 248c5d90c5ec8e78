"""How processes find each other, or say why they do not."""

import subprocess
import sys

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.runtime import join
from flaxformer_lite.runtime.processes import ALONE, ProcessError
from tests.runs import launched

ALL = r"--num_processes=2, --process_id=None:.*three.*none.*--num_processes=1 by itself"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("host:1", None, None), r"--coordinator=host:1, --num_processes=None.*:.*three"),
        ((None, 2, None), ALL),
        ((None, None, 0), r"all three, or none"),
        (("host", 2, 0), r"--coordinator=host: must be HOST:PORT of process 0, such as"),
        (("host:99999", 2, 0), r"--coordinator=host:99999: must be HOST:PORT"),
        (("host:1", 2, 2), r"--process_id=2, --num_processes=2: processes are numbered 0 to 1\."),
    ],
)
def test_flags_that_contradict_each_other(arguments, message):
    with pytest.raises(ConfigError, match=message):
        join.join(*arguments)


def test_alone_by_default_and_on_demand(monkeypatch):
    assert join.join() is ALONE
    monkeypatch.setattr(join, "_detect", lambda timeout: pytest.fail("looked for a cluster"))
    assert join.join(num_processes=1) is ALONE


def test_a_cluster_that_cannot_be_made_out(monkeypatch):
    for name in ("JOB_ID", "STEP_NODELIST", "NTASKS", "PROCID", "LOCALID"):
        monkeypatch.setenv(f"SLURM_{name}", "no number")
    said = r"a cluster was detected.*invalid literal.*or --num_processes=1 to train alone"
    with pytest.raises(ProcessError, match=said):
        join.join()


@pytest.mark.parametrize("index", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_nobody_comes(index):
    place = f"127.0.0.1:{launched.free_port()}"
    joining = f"join({place!r}, 2, {index}, start_timeout=1)"
    command = [sys.executable, "-c", f"from flaxformer_lite.runtime.join import join; {joining}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    why = ["not all 2 processes have joined", "process 1 cannot reach process 0 at"][index]
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: after 1 s, {why}"), done.stderr


PEER = """
import os, signal, sys, time
from flaxformer_lite.runtime.join import join
index = int(sys.argv[2])
group = join(sys.argv[1], 2, index, start_timeout=600, peer_timeout=int(sys.argv[4]))
group.coordinate("both are here", None, lambda _: None)
if index == int(sys.argv[3]):
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(3600)
"""


@pytest.mark.parametrize(
    "killed, patience", [(0, 3600), pytest.param(1, 5, marks=pytest.mark.nightly)]
)
def test_the_loss_of_a_process_ends_the_other_with_one_error_as_its_last_line(killed, patience):
    """The loss of process 0 at once, that of another once it was silent for `peer_timeout`."""
    coordinator = f"127.0.0.1:{launched.free_port()}"
    lines = []
    for index in (0, 1):
        arguments = [coordinator, str(index), str(killed), str(patience)]
        lines.append([sys.executable, "-X", "faulthandler", "-c", PEER, *arguments])
    ended = launched.outputs([launched.start(line, devices=1) for line in lines])
    _, err, code = ended[1 - killed]
    last = err.splitlines()[-1]
    assert code == 1 and last.startswith("error: another process is gone"), err
    assert last.endswith("the same command continues from the last checkpoint, if there is one.")
    assert err.count("error:") == 1 and "Fatal Python error" not in err
