"""Messages that XLA's compilers print, which no Python interface returns."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator

REMATERIALIZED = "Involuntary full rematerialization"


@contextlib.contextmanager
def capture_stderr() -> Iterator[Callable[[], str]]:
    """Captures what this process prints on stderr; yields a function that returns it.

    Compilers print from C++, past sys.stderr, so the file descriptor itself is replaced.
    """
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def captured() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield captured
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def count_rematerialized(messages: str) -> int:
    """Counts the arrays that are replicated on every device to change how they are split."""
    return messages.count(REMATERIALIZED)
