"""How a run ends: one line on stderr and an exit code."""

import os
import signal
import sys
import time

import jax
import pytest

from flaxformer_lite.checkpoints.manager import CheckpointError
from flaxformer_lite.cli import launch
from flaxformer_lite.config import ConfigError, to_config_dict
from flaxformer_lite.runs import run as runs
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runtime import processes
from flaxformer_lite.runtime.processes import ProcessError
from tests.training import tiny_runs


@pytest.fixture
def end(monkeypatch, tmp_path, capsys):
    """Launches a run that ends as told: (exit code, stderr)."""

    def launched(outcome, **options):
        def run(cfg, workdir, group, interrupt):
            if isinstance(outcome, BaseException):
                raise outcome
            return runs.RunResult(8, {}, {}, workdir, outcome)

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(runs, "run", run)
        monkeypatch.setattr(os, "_exit", sys.exit)
        code = 0
        try:
            launch.main(to_config_dict(tiny_runs.config(tmp_path)), "runs/x", **options)
        except SystemExit as ended:
            code = ended.code
        return code, capsys.readouterr().err

    return launched


@pytest.mark.parametrize(
    ("outcome", "code", "message"),
    [
        (ConfigError("a rule is broken"), 2, "error: a rule is broken\n"),
        (CheckpointError("step 3 is lost"), 1, "error: step 3 is lost\n"),
        (CheckpointError("No space left on device."), 1, "device. Free some space; the same comm"),
        (RunError("not finite"), 1, "error: not finite\n"),
        (OSError(28, "No space"), 1, "error: runs/x: No space; the same command continues.\n"),
        (OSError(13, "Denied", "/a/b"), 1, "error: /a/b: Denied; the same command continues.\n"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GB"), 1, "lower train.batch_size"),
        (ProcessError("nobody there"), 1, "error: nobody there\n"),
        ("SIGTERM", 0, ""),
        ("SIGHUP", 0, ""),
        ("SIGINT", 130, ""),
        ("", 0, ""),
    ],
)
def test_every_end_has_its_exit_code(end, outcome, code, message):
    got = end(outcome)
    assert got[0] == code and message in got[1] and got[1].count("\n") == bool(message)


@pytest.mark.parametrize(
    ("caught", "code"), [("SIGTERM", 75), ("SIGHUP", 75), ("SIGINT", 130), ("", 0)]
)
def test_a_scheduler_can_tell_a_stopped_run_from_one_at_its_end(end, caught, code):
    assert end(caught, stopped_code=75) == (code, "")


def test_a_save_that_fails_with_a_lost_process_says_so_and_one_that_fails_by_itself_does_not():
    group = processes.Processes(index=1, count=2)
    gone = "step 5 was not written: UNKNOWN: Gloo AllGather failed"
    full = "step 5: UNAVAILABLE: the bucket is busy"

    def said(message, group):
        return launch.explain(CheckpointError(message), "runs/x", group)[0]

    assert said(gone, group).startswith(f"{processes.LOST} (step 5 was not")
    assert said(full, group) == full
    assert said(gone, processes.ALONE) == gone


@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, TypeError])
def test_the_stack_of_a_bug_is_in_the_log(end, kind, tmp_path):
    (tmp_path / "runs/x").mkdir(parents=True)
    code, said = end(kind("INTERNAL: a bug"))
    assert code == 1 and "a bug; --debug shows the traceback" in said and said.count("\n") == 1
    assert "Traceback" in (tmp_path / "runs/x/errors.log").read_text()


def test_a_message_that_is_all_one_needs_leaves_no_stack(end, tmp_path):
    (tmp_path / "runs/x").mkdir(parents=True)
    assert end(RunError("another run is writing")) == (1, "error: another run is writing\n")
    assert not list((tmp_path / "runs/x").iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_before_the_first_step_ends_the_run_at_once(monkeypatch, tmp_path, number):
    said = []
    ended = []

    def run(*_):
        os.kill(os.getpid(), number)
        while not ended:
            time.sleep(0.001)
        return runs.RunResult(0, {}, {}, "runs/x", "")

    def fail(message, code, at_once):
        said.append((message, code, at_once))

    monkeypatch.setattr(runs, "run", run)
    monkeypatch.setattr(launch.command_line, "fail", fail)
    monkeypatch.setattr(os, "_exit", ended.append)
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP
    launch.main(to_config_dict(tiny_runs.config(tmp_path)), "runs/x")
    what = "interrupted" if number == signal.SIGINT else f"{number.name}: ended at once"
    continues = "the same command continues from the last checkpoint, if there is one."
    assert said == [(f"{what}; {continues}", 128 + number, True)] and ended == [128 + number]
    assert signal.signal(number, before) == signal.SIG_DFL
