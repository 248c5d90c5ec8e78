"""How this program was started, and how the user would start it again."""

import re
import shlex
import shutil
import sys
from pathlib import Path

FLAG = re.compile(r"^--([A-Za-z][\w.-]*)(?==|$)")


def underscored(argv: list[str]) -> list[str]:
    """The command line with flags' names in one spelling: --max-new-tokens is --max_new_tokens. Values stay."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [FLAG.sub(lambda m: "--" + m[1].replace("-", "_"), arg) for arg in argv[:end]] + argv[end:]


def program(command: str = "train") -> str:
    """How the user would start `command` where and as this program was started: the beginning of a command line."""
    started = Path(sys.argv[0])
    if started.name == "train.py" and command == "train":
        return f"{_python()} {shlex.quote(sys.argv[0])}"
    if started.stem == "flaxformer_lite":
        found = shutil.which("flaxformer_lite")
        known = found and Path(found).absolute() == started.absolute()
        return f"{'flaxformer_lite' if known else shlex.quote(sys.argv[0])} {command}"
    return f"{_python()} -m flaxformer_lite {command}"


def _python() -> str:
    """The interpreter as a user types it: from the current folder, by its name where that finds it, else in full."""
    own, here = Path(sys.executable), Path.cwd()
    if own.is_relative_to(here):
        return str(own.relative_to(here))
    found = shutil.which("python")
    return "python" if found and Path(found).parent == own.parent else shlex.quote(str(own))
