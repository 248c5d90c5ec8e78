"""Two processes of two devices on one machine, running train.py: equal to one process of one
device, and to each other."""

import collections
import shutil
import signal

import numpy as np
import pytest

from flaxformer_lite.runs.report import metrics
from tests.runs import launched
from tools import faults

STEPS = 6
BATCH = 16
SETTINGS = {
    "train.steps": STEPS,
    "train.batch_size": BATCH,
    "train.accumulate": 2,
    "train.checkpoint_every": 3,
    "mesh.data": 1,
    "mesh.fsdp": 2,
    "mesh.tensor": 2,
}
ONE = {"mesh.fsdp": 1, "mesh.tensor": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two")


def pair(folder, name, *flags, settings=SETTINGS, **options):
    port = launched.free_port()
    return launched.pair(folder, folder / name, settings, port, *flags, **options)


@pytest.fixture(scope="module")
def uninterrupted(folder):
    """The workdir of a run of two processes, what they said, and the examples they made."""
    ids = [folder / "ids0", folder / "ids1"]
    with pair(folder, "run", ids=ids) as started:
        ended = launched.outputs(started)
    assert [code for _, _, code in ended] == [0, 0], ended
    assert not list(folder.rglob("*-cache")), "process 0 alone would find its programs there"
    lines = [path.read_text().splitlines() for path in ids]
    made = [[tuple(map(int, line.split())) for line in own] for own in lines]
    return folder / "run", ended, made


def losses(workdir):
    records = metrics.read(workdir / "metrics.jsonl")
    return {r["step"]: (r["loss"], r["grad_norm"]) for r in records if r["split"] == "train"}


def trained(examples):
    """Those that were trained on, and not made ahead."""
    return {example for example in examples if example[0] < STEPS * BATCH}


def test_losses_of_one_process_and_each_example_once_in_order(folder, uninterrupted):
    workdir, _, made = uninterrupted
    whole = trained(launched.alone(folder, folder / "alone", {**SETTINGS, **ONE}))
    same_losses(workdir, folder / "alone")
    assert len(losses(workdir)) == STEPS
    first, second = map(trained, made)
    assert not first & second and len(first) == len(second) == STEPS * BATCH // 2
    assert first | second == whole
    assert max(collections.Counter(made[0] + made[1]).values()) == 1


def same_losses(workdir, due):
    found, due = (list(losses(one).values()) for one in (workdir, due))
    np.testing.assert_allclose(found, due, rtol=1e-5)


def test_only_process_0_writes_text_and_one_prepares_the_data(uninterrupted):
    workdir, ((out, err, code), other), _ = uninterrupted
    assert code == 0 and "4 of 4 cpu in 2 processes" in out and "0 after step two" in out
    told = ("tokenizing: 0.0 MB", "waiting for")
    assert all(line.startswith(told) for line in err.splitlines()), err
    assert other == ("", "", 0)
    assert {p.name for p in (workdir / "checkpoints").iterdir()} == {"3", "6"}
    parts = {p.name for p in (workdir / "checkpoints" / "6" / "state").glob("ocdbt.process_*")}
    assert parts == {"ocdbt.process_0", "ocdbt.process_1"}, "both write their part"


@pytest.mark.nightly
def test_stopped_by_a_signal_and_by_the_loss_of_a_process_the_same_command_ends_bit_for_bit_alike(
    folder, uninterrupted
):
    with pair(folder, "again") as started:
        for line in started[0].stdout:
            if line.startswith("step 2/"):
                started[1].send_signal(signal.SIGTERM)
                break
        (out, err, code), other = launched.outputs(started)
    assert (code, other[2]) == (0, 0), (err, other)
    assert "SIGTERM of process 1: stopped after step" in out
    # where the machine is slow
    assert all(line.startswith("waiting for process 1") for line in err.splitlines()), err
    assert other[1] == "\nSIGTERM: stopping after this step; once more stops at once.\n"
    with pair(folder, "again", "--peer_timeout=5") as started:
        for line in started[0].stdout:
            if line.startswith(f"step {STEPS - 1}/"):
                started[1].kill()
                break
        (_, err, code), _ = launched.outputs(started)
    last = err.splitlines()[-1]
    assert code == 1 and last.startswith("error: another process is gone"), err
    # what gloo says may follow in parentheses
    assert "the same command continues from the last checkpoint, if there is one" in last
    assert "Traceback" not in err and "Fatal Python error" not in err
    with pair(folder, "again") as started:
        (out, _, code), other = launched.outputs(started)
    assert (code, other[2]) == (0, 0) and "resuming" in out
    ours, due = (launched.digests(at, STEPS) for at in (folder / "again", uninterrupted[0]))
    assert ours == due


@pytest.mark.nightly
@pytest.mark.parametrize("killed, patience", [(0, 3600), (1, 5)])
def test_the_loss_of_a_process_during_the_first_save_is_told(folder, killed, patience):
    """That of process 0 at once, as the patience with a silent process is an hour."""
    workdir = folder / f"killed{killed}"
    with pair(folder, workdir.name, f"--peer_timeout={patience}") as started:
        faults.until(lambda: list((workdir / "checkpoints").glob("3*")), started)
        started[killed].kill()
        ended = launched.outputs(started)
    _, err, code = ended[1 - killed]
    assert code == 1 and err.splitlines()[-1].startswith("error: another process is gone"), err


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_fewer_devices_go_on_to_rounding(folder, uninterrupted, devices, capsys):
    workdir = shutil.copytree(uninterrupted[0], folder / f"on{devices}")
    shutil.rmtree(workdir / "checkpoints" / str(STEPS))
    parts = min(2, devices)
    mesh = {"mesh.data": devices // parts, "mesh.fsdp": parts, "mesh.tensor": 1}
    made = launched.alone(folder, workdir, {**SETTINGS, **mesh})
    said = capsys.readouterr().out
    assert "after step 3" in said and "mesh.tensor; results will match only" in said
    same_losses(workdir, uninterrupted[0])
    assert sorted(at for at, _ in trained(made)) == list(range(3 * BATCH, STEPS * BATCH))


@pytest.mark.nightly  # how they compare: tests/runtime/test_processes.py
def test_a_process_that_differs_is_named_before_the_first_step(folder):
    each = {}, {"optimizer.learning_rate": 0.5}
    with pair(folder, "differs", each=each) as started:
        (out, err, code), other = launched.outputs(started)
    assert (code, other[2]) == (2, 2) and not out
    assert err.startswith("error: the processes differ. process 1 (") and err.count("\n") == 1
    assert "config.optimizer.learning_rate is 0.5, elsewhere 0.001" in err
    assert not (folder / "differs").exists()


@pytest.mark.nightly
def test_a_process_of_another_number_of_processes_is_named(folder):
    joining = f"--coordinator=127.0.0.1:{launched.free_port()}"
    lines = [
        launched.command(
            folder, folder / "counts", {}, joining, f"--num_processes={2 + i}", f"--process_id={i}"
        )
        for i in (0, 1)
    ]
    (out, err, code), other = launched.outputs([launched.start(line, devices=4) for line in lines])
    assert (code, other[2]) == (2, 2) and not out
    assert "--num_processes is 3, elsewhere 2" in err.splitlines()[-1], err
    assert "Traceback" not in err


@pytest.mark.nightly
def test_both_run_out_of_patience_at_the_same_step(folder):
    still = {"optimizer.learning_rate": 1e-30, "train.eval_every": 1}
    still |= {"train.best": "loss", "train.patience": 2}
    with pair(folder, "patience", settings={**SETTINGS, **still}) as started:
        (out, err, code), other = launched.outputs(started)
    assert (code, other[2]) == (0, 0), (err, other)
    assert "after 1 steps, and no better in 2 evaluations since (train.patience)" in out
    assert {p.name for p in (folder / "patience" / "checkpoints").iterdir()} == {"3"}
    assert {p.name for p in (folder / "patience" / "best").iterdir()} == {"1"}
