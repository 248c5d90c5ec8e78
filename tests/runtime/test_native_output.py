"""What code below Python writes to stderr: out of sight, and in a log where a run fails."""

import subprocess
import sys
import tempfile

from flaxformer_lite.runtime import native_output

WRITES = """
import os, sys
from pathlib import Path
from flaxformer_lite.runtime import native_output
os.write(2, b"before ")
file = native_output.divert()
os.write(2, b"below Python\\n")
print("of Python", file=sys.stderr)
native_output.keep(file, Path({log!r}))
if {crash}:
    os.abort()
"""


def written(log, crash=False):
    done = subprocess.run(
        [sys.executable, "-c", WRITES.format(log=str(log), crash=crash)],
        capture_output=True,
        text=True,
    )
    return done.stderr


def test_it_goes_to_the_log_and_pythons_own_to_stderr(tmp_path):
    log = tmp_path / "errors.log"
    log.write_text("earlier\n")
    assert written(log) == "before of Python\n" and log.read_text() == "earlier\nbelow Python\n"


def test_a_failed_check_is_told_from_a_lost_process(tmp_path):
    file = tempfile.TemporaryFile("a+b")  # noqa: SIM115
    with file:
        file.write(b"E1123 01:21:43 agent.cc:289] Polled an error\n")
        assert native_output.failed_check(file) == ""
        file.write(b"F1123 01:21:44 pass.cc:7] Check failed: a < b\n*** stack ***\n")
        assert native_output.failed_check(file) == "F1123 01:21:44 pass.cc:7] Check failed: a < b"


def test_a_log_that_cannot_be_written_is_done_without_and_a_crash_is_reported(tmp_path):
    said = written(tmp_path / "nowhere" / "errors.log", crash=True)
    assert (
        said.startswith("before of Python\nFatal Python error: Aborted")
        and "below Python" not in said
    )


def test_nothing_is_diverted_where_there_is_no_place_for_it_or_no_stderr(tmp_path):
    program = WRITES.format(log=str(tmp_path / "errors.log"), crash=False)
    nowhere = f"import tempfile\ntempfile.tempdir = {str(tmp_path / 'nowhere')!r}\n"
    done = subprocess.run([sys.executable, "-c", nowhere + program], capture_output=True, text=True)
    assert done.stderr == "before below Python\nof Python\n" and done.returncode == 0
    closed = "import os\nos.close(2)\n" + program.replace("os.write(2, b", "str(b").replace(
        "sys.stderr)", "sys.stdout)"
    )
    done = subprocess.run([sys.executable, "-c", closed], capture_output=True, text=True)
    assert done.stdout == "of Python\n" and done.returncode == 0, done
    assert not (tmp_path / "errors.log").exists()
