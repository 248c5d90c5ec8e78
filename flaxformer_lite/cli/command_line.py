"""Command lines that end in one sentence: flags are read here, and errors become a line on stderr and an exit code."""

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from absl import flags
from ml_collections import config_flags

BAD_INPUT, FAILED = 2, 1  # exit codes
UNKNOWN = re.compile(r"""'(?P<wrong>\w+)'\n?(Did you mean "(?P<near>\w+)")?""")


def parser(*required: tuple[flags.FlagHolder, str]) -> Callable[[list[str]], list[str]]:
    """A `flags_parser` for absl's app.run that explains every mistake in one line.

    Args:
      *required: flags that must be given, each with an example of its value.
    """

    def parse(argv: list[str]) -> list[str]:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # in an import, KeyboardInterrupt ends in its traceback or is lost
        try:
            rest = flags.FLAGS(argv)
        except Exception as error:  # absl's, ml_collections', and whatever a config file of the user's raises
            fail(explain(error, argv), BAD_INPUT)
        if len(rest) > 1:
            fail(f"{rest[1]!r} is not a flag; flags look like --workdir=runs/demo.", BAD_INPUT)
        for flag, example in required:
            if not given(argv, flag.name):
                fail(f"--{flag.name} is missing; for example --{flag.name}={example}", BAD_INPUT)
        if missing := missing_file(argv):
            fail(f"--config={missing}: no such file.", BAD_INPUT)
        return rest

    return parse


def config(argv: list[str]) -> Any:
    """The ConfigDict of `--config=FILE --config.FIELD=VALUE ...`, for commands that are not absl's.

    Ends the program with one line where it cannot be made.
    """
    values = flags.FlagValues()
    line = ["", *argv]
    holder = config_flags.DEFINE_config_file("config", None, "The experiment.", flag_values=values, sys_argv=line)
    try:
        rest = values(line)
        if len(rest) > 1:
            fail(f"{rest[1]!r} is not a flag; flags look like --config=configs/demo.py.", BAD_INPUT)
        if missing := missing_file(argv):
            fail(f"--config={missing}: no such file.", BAD_INPUT)
        if not given([*line, ""], "config"):
            fail("--config is missing; for example --config=configs/demo.py", BAD_INPUT)
        return holder.value
    except Exception as error:  # absl's, ml_collections', and whatever a config file of the user's raises
        fail(explain(error, argv), BAD_INPUT)


def explain(error: Exception, argv: list[str]) -> str:
    """One sentence of what absl and ml_collections say in many.

    An unknown field is named with its whole path and the nearest known one; a config file's exception by its last line.
    """
    if missing := missing_file(argv):
        return f"--config={missing}: no such file."
    overrides = [arg.split("=")[0] for arg in argv if arg.startswith("--config.")]
    plain = str(error).replace("\\n", "\n").replace("\\'", "'")  # a KeyError's text is a repr, at times of a repr
    if isinstance(error, (KeyError, AttributeError)) and (found := UNKNOWN.search(plain)):
        for name in overrides:
            if found["wrong"] in name.split("."):
                near = name.replace(found["wrong"], found["near"]) if found["near"] else ""
                return f"{name}: no such field" + (f"; did you mean {near}?" if near else ".")
    if isinstance(error, flags.UnrecognizedFlagError) and overrides and not given(argv, "config"):
        return "--config is missing; for example --config=configs/demo.py"
    if isinstance(error, flags.Error):
        said = re.sub(r"\('(.*)', '(.*)'\)$", r"\1 \2", str(error))  # a bool's parser raises two arguments
        lines = [line for line in said.splitlines() if line.strip()]
        return f"{lines[0].split(': Error whilst')[0]}: {lines[-1]}" if len(lines) > 1 else lines[0]
    config = next((arg for arg in argv if arg.startswith("--config=")), "the command line")
    return f"{config}: {type(error).__name__}: {error}"


def given(argv: list[str], name: str) -> bool:
    """Whether a flag has a value on the command line."""
    joined = [arg for arg in argv if re.match(rf"--?{name}=.", arg)]
    return bool(joined) or any(arg.lstrip("-") == name and arg.startswith("-") for arg in argv[1:-1])


def missing_file(argv: list[str]) -> str:
    """The value of --config where it names no file; ml_collections would say so only when the config is first used."""
    for arg in argv:
        if (found := re.match(r"--?config=([^:]+)", arg)) and not Path(found[1]).is_file():
            return found[1]
    return ""


def fail(message: Any, code: int, *, at_once: bool = False) -> NoReturn:
    """Ends the program with one line on stderr; `at_once` runs no exit handlers, which might fail for the same reason."""
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr, flush=True)
    if at_once:
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)
