"""One hostile input, and what counts as a clear end of it."""

import dis
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

LIMIT = 60.0  # seconds
LONGEST = 2000  # characters of a message that somebody reads
CODES = (1, 2, 130, 143)  # failure, bad input, SIGINT, SIGTERM
KEY = "HIDDEN"  # the secret of hostile addresses
RAISE = dis.opmap["RAISE_VARARGS"]
UNREADABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class NotClear(Exception):
    """A case that ended, but wrongly; the message says how."""


@dataclass(frozen=True)
class Case:
    """One hostile input.

    Attributes:
      kind: the class of inputs that it belongs to.
      label: what it does, in enough detail to do it by hand.
      run: tries it; returns if it works and is right, raises NotClear if it is wrong.
      limit: seconds that it may take.
    """

    kind: str
    label: str
    run: Callable[[], None]
    limit: float = LIMIT


def judge(error: BaseException, printed: str, package: Path) -> str:
    """Returns why the end of a case is not clear, or an empty string.

    An error is clear if its type is the package's own, or if the package raises it itself as a
    ValueError or OSError; so is an OSError of the system that names its file, and the exit of a
    command with one line on stderr.

    Args:
      error: what ended the case.
      printed: what was written to stderr.
      package: the folder of the package.
    """
    if isinstance(error, NotClear):
        return str(error)
    if isinstance(error, SystemExit):
        return judge_exit(error.code, printed)
    name = f"{type(error).__module__}.{type(error).__name__}".removeprefix("builtins.")
    told = str(error)
    own = type(error).__module__.split(".")[0] == package.name
    raised = type(error) in (ValueError, OSError) and _raised_in(error.__traceback__, package)
    system = isinstance(error, OSError) and error.filename is not None and bool(error.strerror)
    if not (own or raised or system):
        where = traceback.extract_tb(error.__traceback__)[-1:]
        at = "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in where)
        return f"{name}{at}: {told[:160]!r}"
    return judge_message(told)


def judge_exit(code: object, printed: str) -> str:
    """Returns why a command that ended with this code and these words on stderr has not ended
    clearly, or ""."""
    if "Traceback (most recent call last)" in printed or "Fatal Python error" in printed:
        return f"a traceback: {printed.strip().splitlines()[-1][:160]!r}"
    if code not in CODES:
        return f"exit code {code}: {printed[-160:]!r}"
    errors = [line for line in printed.splitlines() if re.match(r"error: |\S+: error: ", line)]
    if len(errors) != 1:
        return f"exit code {code} and {len(errors)} lines of error on stderr: {printed[-160:]!r}"
    return judge_message(errors[0].partition("error: ")[2])


def judge_message(told: str) -> str:
    """Returns why nobody could read a message, or an empty string."""
    if not told.strip():
        return "an empty message"
    if len(told) > LONGEST:
        return f"a message of {len(told):,} characters: {told[:80]!r}"
    if KEY in told:
        return f"a message with a key: {told[:80]!r}"
    if found := UNREADABLE.search(told):
        return f"a message with the character {found[0]!r}: {told[:80]!r}"
    return ""


def _raised_in(trace: TracebackType | None, package: Path) -> bool:
    """Returns whether the innermost frame is a raise statement of the package."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    return Path(code.co_filename).is_relative_to(package) and code.co_code[trace.tb_lasti] == RAISE
