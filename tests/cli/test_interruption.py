"""Ctrl-C ends a command even where Python or a library loses the KeyboardInterrupt."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = """
import os
import signal
import threading
import time
import types

from flaxformer_lite.cli import interruption

went_on = threading.Event()


class Grace(threading.Event):
    def wait(self, timeout):
        # until the block has gone on, on a slow machine too
        assert timeout == interruption.GRACE_SECONDS and went_on.wait(600)
        return self.is_set()


signal.signal(signal.SIGINT, signal.default_int_handler)
interruption.threading = types.SimpleNamespace(**{{**vars(threading), "Event": Grace}})


def ask():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)  # Python handles signals between two lines


class Collected:
    def __del__(self):
        ask()


with interruption.interruptible():
    try:
        {code}
    except KeyboardInterrupt:
        print("heard", flush=True)
    except ImportError:
        pass
    print("went on", flush=True)
    went_on.set()
    time.sleep(600)
"""
CASES = {"ask()": "heard\nwent on\n", "Collected()": "went on\n", "import swallows": ""}


@pytest.mark.parametrize("code", CASES)
def test_a_lost_interrupt_ends_the_process(code, tmp_path):
    swallows = "import __main__\ntry:\n    __main__.ask()\nexcept BaseException:\n    pass\n"
    (tmp_path / "swallows.py").write_text(swallows)
    (tmp_path / "started.py").write_text(START.format(code=code))
    done = subprocess.run(
        [sys.executable, tmp_path / "started.py"],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, CASES[code])
    assert done.stderr.endswith("error: interrupted.\n")


@pytest.fixture
def python_hears_sigint():
    """Puts Python's own handler in place; what a shell runs in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_hears_sigint")
def test_handlers_are_put_back():
    from flaxformer_lite.cli import interruption

    with pytest.raises(KeyboardInterrupt), interruption.interruptible():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1
