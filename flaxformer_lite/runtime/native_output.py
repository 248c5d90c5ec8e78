"""Output of native code in a run of several processes, kept from stderr: JAX's runtime comments on
every lost peer."""

import contextlib
import faulthandler
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO


def divert() -> IO[bytes]:
    """Sends what is written to file descriptor 2 to a file without a name, and sys.stderr to where
    that led before.

    Does nothing, and returns an empty file, where stderr is closed or there is no folder for
    temporary files.
    """
    try:
        os.fstat(2)
        file = tempfile.TemporaryFile("a+b")  # noqa: SIM115
    except OSError:
        return io.BytesIO()
    sys.stderr.flush()
    shown = os.dup(2)
    os.dup2(file.fileno(), 2)
    sys.stderr = open(  # noqa: SIM115
        shown, "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace"
    )
    faulthandler.enable(sys.stderr)  # for a crash, which nobody else reports
    return file


def failed_check(file: IO[bytes]) -> str:
    """Returns the line by which code below Python says that it aborts, "" if there is none."""
    file.seek(0)
    found = re.search(rb"^F\d{4} .*", file.read(), re.MULTILINE)
    return found[0].decode(errors="replace")[:240] if found else ""


def keep(file: IO[bytes], path: Path) -> None:
    """Appends what was diverted to a log, if there is any and it can be written."""
    with contextlib.suppress(OSError):
        file.seek(0)
        if os.fstat(file.fileno()).st_size:
            with path.open("ab") as log:
                shutil.copyfileobj(file, log)
