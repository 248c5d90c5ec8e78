"""Command lines: how this program was started, and how to start it again."""

import re
import shlex
import shutil
import sys
from pathlib import Path

FLAG = re.compile(r"^--([A-Za-z][\w.-]*)(?==|$)")


def underscored(argv: list[str]) -> list[str]:
    """Spells flags with underscores, --max-new-tokens as --max_new_tokens, and keeps values."""
    end = argv.index("--") if "--" in argv else len(argv)
    flags = [FLAG.sub(lambda m: "--" + m[1].replace("-", "_"), arg) for arg in argv[:end]]
    return flags + argv[end:]


def fields_given(argv: list[str]) -> list[str]:
    """Lists the config fields that the command line sets, as `model.d_model`."""
    matches = (re.match(r"--?(?:no)?config\.([\w.]+)", arg) for arg in argv)
    return [match[1] for match in matches if match]


def program(command: str = "train") -> str:
    """Returns the beginning of a command line that runs `command` as this program was started."""
    script = Path(sys.argv[0])
    if script.name == "train.py" and command == "train":
        return f"{_python()} {shlex.quote(sys.argv[0])}"
    if script.stem == "flaxformer_lite":
        on_path = shutil.which("flaxformer_lite")
        if on_path and Path(on_path).absolute() == script.absolute():
            return f"flaxformer_lite {command}"
        return f"{shlex.quote(sys.argv[0])} {command}"
    return f"{_python()} -m flaxformer_lite {command}"


def _python() -> str:
    """Returns the interpreter as a user would type it: relative, by name, or its full path."""
    interpreter = Path(sys.executable)
    here = Path.cwd()
    if interpreter.is_relative_to(here):
        return str(interpreter.relative_to(here))
    on_path = shutil.which("python")
    if on_path and Path(on_path).parent == interpreter.parent:
        return "python"
    return shlex.quote(str(interpreter))
