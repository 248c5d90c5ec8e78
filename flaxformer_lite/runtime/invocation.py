"""Command lines: how this program was started, and how to start it again."""

import re
import shlex
import shutil
import sys
from pathlib import Path

FLAG = re.compile(r"^--([A-Za-z][\w.-]*)(?==|$)")


def underscored(argv: list[str]) -> list[str]:
    """Spells all flags with underscores, --max-new-tokens as --max_new_tokens; values are left
    alone."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [FLAG.sub(lambda m: "--" + m[1].replace("-", "_"), arg) for arg in argv[:end]] + argv[
        end:
    ]


def fields_given(argv: list[str]) -> list[str]:
    """Lists the config fields that the command line sets, as `model.d_model`."""
    found = (re.match(r"--?(?:no)?config\.([\w.]+)", arg) for arg in argv)
    return [match[1] for match in found if match]


def program(command: str = "train") -> str:
    """Returns the beginning of a command line that starts `command` in the way this program was
    started."""
    started = Path(sys.argv[0])
    if started.name == "train.py" and command == "train":
        return f"{_python()} {shlex.quote(sys.argv[0])}"
    if started.stem == "flaxformer_lite":
        found = shutil.which("flaxformer_lite")
        known = found and Path(found).absolute() == started.absolute()
        return f"{'flaxformer_lite' if known else shlex.quote(sys.argv[0])} {command}"
    return f"{_python()} -m flaxformer_lite {command}"


def _python() -> str:
    """Returns the interpreter as a user would type it: relative, by name if it is on the path, else
    in full."""
    own = Path(sys.executable)
    here = Path.cwd()
    if own.is_relative_to(here):
        return str(own.relative_to(here))
    found = shutil.which("python")
    return "python" if found and Path(found).parent == own.parent else shlex.quote(str(own))
