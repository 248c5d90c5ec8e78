"""A tenth of the attacks of `make opponent`, and what it calls a clear end."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite.config import ConfigError
from flaxformer_lite.nn.functions import masks
from tools.opponent.case import Case, NotClear, judge, judge_exit
from tools.opponent.workers import run_all

PACKAGE = Path(flaxformer_lite.__file__).parent
# workers are forked, and run nothing of jax
pytestmark = pytest.mark.filterwarnings("ignore:.*fork")
CLEAR = "config values,config files,data files,tables,weight headers,JSON,tokenizers,templates"


@pytest.mark.nightly
def test_the_classes_that_end_clearly_still_do():
    line = [sys.executable, "-m", "tools.opponent", "--fraction=0.1", "--seed=3", "--show"]
    done = subprocess.run([*line, f"--classes={CLEAR}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ConfigError("field=3: must be 4."), ""),
        (ConfigError("field=\x1b[31m: must be 4."), "a message with the character"),
        (ConfigError("x" * 9999), "a message of 9,999 characters"),
        (ConfigError(""), "an empty message"),
        (NotClear("wrong"), "wrong"),
        (KeyError("x"), "KeyError"),
        (ValueError("raised by somebody else"), "ValueError"),
        (RecursionError("deep"), "RecursionError"),
        (FileNotFoundError(2, "No such file", "x"), ""),
        (OSError("of no file"), "OSError"),
    ],
)
def test_what_is_clear(error, why):
    try:
        raise error
    except type(error) as caught:
        found = judge(caught, "", PACKAGE)
    assert found.startswith(why) and bool(found) == bool(why)


@pytest.mark.parametrize(
    ("code", "printed", "why"),
    [
        (2, "error: --config.x=3: must be 4.\n", ""),
        (2, "notice: beside\nerror: --config.x=3: must be 4.\n", ""),
        (2, "", "exit code 2 and 0 lines"),
        (1, "error: one\nerror: two\n", "exit code 1 and 2 lines"),
        (
            1,
            "Traceback (most recent call last):\n  File\nKeyError: 3\n",
            "a traceback: 'KeyError: 3'",
        ),
        (-9, "error: x\n", "exit code -9"),
        (134, "Fatal Python error: Aborted\n", "a traceback"),
    ],
)
def test_which_exits_are_clear(code, printed, why):
    found = judge_exit(code, printed)
    assert found.startswith(why) and bool(found) == bool(why)


def test_a_hang_and_a_death_are_counted_and_others_go_on():
    cases = [
        Case("test", "hangs", lambda: time.sleep(600), limit=1),
        Case("test", "dies", lambda: os._exit(7)),
        Case("test", "works", lambda: None),
        Case("test", "is an error that the package raises", lambda: masks.window(-1)),
        Case("test", "ends a program", lambda: sys.exit(0)),
    ]
    whys = {case.label: why for case, why in run_all(cases, PACKAGE, PACKAGE, jobs=1)}
    assert whys["hangs"] == "hangs: no end within 1 s" and whys["dies"] == "dies with exit code 7"
    assert whys["works"] == whys["is an error that the package raises"] == ""
    assert whys["ends a program"].startswith("exit code 0")
