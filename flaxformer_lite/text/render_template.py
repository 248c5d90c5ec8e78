"""Renders a chat template; run as a script in a separate process, with a limit in seconds.

The seconds are of processor time, and begin once jinja2 is imported.

A template is a program that came with the weights. Jinja's sandbox keeps it from files and Python's
internals, but not from computing for ever: `10 ** 10 ** 10` is one step of the interpreter, which
no limit on loops or ranges and no thread can end. The limits of a process can, for whatever the
template does.
"""

import contextlib
import datetime
import json
import math
import resource
import sys
import time
from typing import Any, NoReturn

MEMORY = 1 << 30  # bytes
LONGEST = 1 << 22  # characters of a prompt
MOST_CHARACTERS = 300  # characters of an error


def main() -> None:
    """Reads a request from stdin, sets the limits, and writes its answer to stdout."""
    import jinja2.sandbox  # noqa: F401, which takes longer than a usual template

    request = json.load(sys.stdin.buffer)
    for limit, most in (
        (resource.RLIMIT_CPU, math.ceil(time.process_time()) + int(sys.argv[1])),
        (resource.RLIMIT_DATA, MEMORY),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # a lower limit stays
            resource.setrlimit(limit, (most, most))
    sys.stdout.buffer.write(json.dumps(answer(request)).encode())


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Renders {"template": text, "batch": [object]}.

    Returns {"texts": [text]} or {"error": text}.
    """
    try:
        return {"texts": render(**request)}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY >> 20} MiB"}
    except Exception as error:  # a template may raise anything
        text = str(error)
        if not type(error).__module__.startswith("jinja2"):
            text = f"{type(error).__name__}: {text}"
        return {"error": "".join(c if c.isprintable() else " " for c in text[:MOST_CHARACTERS])}


def render(template: str, batch: list[dict[str, Any]]) -> list[str]:
    """Renders a template for each object of variables, in Jinja's sandbox.

    The functions of chat templates are available.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    loops = ["jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=loops
    )
    environment.filters["tojson"] = lambda value, **form: json.dumps(
        value, **{"ensure_ascii": False, **form}
    )
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }
    compiled = environment.from_string(template)
    texts = []
    for variables in batch:
        parts = []
        left = LONGEST
        for part in compiled.generate(**variables):
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise TemplateError(f"a prompt of more than {LONGEST:,} characters")
        texts.append("".join(parts))
    return texts


if __name__ == "__main__":
    main()
