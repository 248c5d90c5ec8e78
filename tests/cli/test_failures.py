"""Whatever ends a command is one line on stderr, with the way out; --debug shows the traceback."""

import errno
import gc
import logging
import re
import sys
import threading

import jax
import pytest

from flaxformer_lite import __main__
from flaxformer_lite.checkpoints.manager import CheckpointError
from flaxformer_lite.cli import command_line, failures, inspect
from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained.safetensors import WeightsError


class PanicError(BaseException):
    """As libraries written in Rust raise it."""


OOM = "INTERNAL: Error: Out of memory allocating 7 bytes"
FULL = "RESOURCE_EXHAUSTED: pwrite: No space left on device [tensorstore]"
ENDS = [
    (ConfigError("steps=0: must be positive."), 2, "steps=0: must be positive."),
    (WeightsError("model.safetensors: cut"), 2, "model.safetensors: cut"),
    (CheckpointError("step 3 is lost"), 1, "step 3 is lost"),
    (FileNotFoundError(errno.ENOENT, "No such file", "/a/b"), 1, "/a/b"),
    (OSError(errno.ENOSPC, "No space", "/a/b"), 1, "the disk is full .*/a/b.*free some space"),
    (ValueError(FULL), 1, "the disk is full"),
    (MemoryError(), 1, "out of memory .* take a smaller model"),
    (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GB"), 1, "out of memory .*9 GB.* smaller"),
    (jax.errors.JaxRuntimeError(OOM), 1, "out of memory .* 7 bytes"),
    (RecursionError("maximum recursion depth exceeded"), 1, "nested too deeply .*--debug"),
    (OverflowError("too large"), 1, "OverflowError: too large; --debug shows the traceback"),
    (PanicError("called `unwrap()` on `None`"), 1, "PanicError: called .*--debug shows the tra"),
    (TypeError("\x1b[31mred\nblue"), 1, r"TypeError: \\x1b\[31mred; --debug"),
    (AssertionError(), 1, "AssertionError: no message"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (ConfigError("x" * 10_000), 2, "x{1000}"),
]


@pytest.mark.parametrize(("error", "code", "message"), ENDS, ids=lambda e: type(e).__name__)
def test_every_error_is_one_line(error, code, message, monkeypatch, capsys):
    def run(args):
        raise error

    monkeypatch.setattr(inspect, "run", run)
    with pytest.raises(SystemExit) as ended:
        __main__.main(["inspect", "x"])
    said = capsys.readouterr().err
    assert ended.value.code == code and re.search(message, said)
    assert said.startswith("error: ") and len(said) < 2000
    assert said.endswith("\n") and said[:-1].isprintable()


def test_debug_shows_the_stack(monkeypatch, capsys):
    monkeypatch.setattr(inspect, "run", lambda args: {}["missing"])
    monkeypatch.setattr(sys, "argv", ["flaxformer_lite", "inspect", "x", "--debug"])
    with pytest.raises(SystemExit, match="1"):
        __main__.main(sys.argv[1:])
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("Traceback") and said[-1].startswith("error: KeyError: 'missing'")


def test_a_message_that_python_cannot_print():
    said, code = failures.explain(ValueError(10**5000))
    assert said == "ValueError: no message; --debug shows the traceback."
    assert code == command_line.EXIT_FAILED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_libraries_print_of_errors_is_kept_in_a_file(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "level", logging.CRITICAL)  # as train hushes libraries

    class Finalized:
        def __del__(self):
            raise ValueError("in a callback")

    def fails():
        raise ValueError("in a thread")

    log = tmp_path / "errors.log"
    hooks = (threading.excepthook, sys.unraisablehook)
    with failures.logged(log):
        assert not log.exists()
        thread = threading.Thread(target=fails)
        thread.start()
        thread.join()
        Finalized()
        gc.collect()
        logging.getLogger("foreign").error("in a log")
        logging.getLogger("foreign").warning("in a warning")
    assert hooks == (threading.excepthook, sys.unraisablehook)
    assert logging.getLogger().level == logging.CRITICAL
    kept = log.read_text()
    assert all(f"in a {place}" in kept for place in ("thread", "callback", "log"))
    assert "Traceback" in kept
    assert "warning" not in kept
    assert "in a" not in capfd.readouterr().err


def test_a_log_without_a_folder_raises_nothing(tmp_path):
    with failures.logged(tmp_path / "none" / "errors.log"):
        logging.getLogger("library").error("an error of a library")
    assert not list(tmp_path.iterdir())
