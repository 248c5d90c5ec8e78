"""Chat templates, rendered in processes that end if the template does not."""

import json
import math
import re
import subprocess
import sys
from typing import Any

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.text import render_template

SECONDS = 2  # of processor time after the import of jinja2; a usual template takes milliseconds
EACH = 0.02  # seconds more for each conversation
PATIENCE = 600  # seconds, on a machine that gives the process no time
BATCH = 2048  # conversations rendered by one process
FAILS = "chat: the model's template fails on this conversation"


def render(template: str, batch: list[Json]) -> list[str]:
    """Renders a template once for each object of variables.

    Raises:
      ConfigError: the template fails, refuses the messages, renders nothing or what is no Unicode,
        or exceeds the limits of text/render_template.py.
    """
    texts = []
    for start in range(0, len(batch), BATCH):
        answer = _in_process({"template": template, "batch": batch[start : start + BATCH]})
        if "error" in answer:
            raise ConfigError(f"{FAILS} ({answer['error']}).")
        texts += answer["texts"]
    return [_checked(text) for text in texts]


def guarded(value: object, special: re.Pattern[str], guard: str) -> Any:
    """Breaks the spelling of each special token within messages.

    It puts a guard after the token's first character.
    """
    if isinstance(value, str):
        return special.sub(lambda match: f"{match[0][0]}{guard}{match[0][1:]}", value)
    if isinstance(value, dict):
        return {key: guarded(item, special, guard) for key, item in value.items()}
    if isinstance(value, list):
        return [guarded(item, special, guard) for item in value]
    return value


def _in_process(request: Json) -> Json:
    """Returns render_template.answer of a request, made in a process with limits."""
    sent = json.dumps(request).encode()
    seconds = SECONDS + math.floor(EACH * len(request["batch"]))
    try:
        command = [sys.executable, "-P", render_template.__file__, str(seconds)]
        patience = PATIENCE + 10 * (seconds - SECONDS)
        done = subprocess.run(
            command, input=sent, capture_output=True, timeout=patience, check=True
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{FAILS} (it does not end within {patience} s).") from None
    except subprocess.CalledProcessError as error:
        last_line = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        limits = f"{seconds} s of processor time, {render_template.MEMORY >> 20} MiB"
        reason = f"its process ended: {last_line}"
        if error.returncode < 0:
            reason = f"it does not end within {limits}"
        raise ConfigError(f"{FAILS} ({reason}).") from None
    return json.loads(done.stdout)


def _checked(text: str) -> str:
    if not text:
        raise ConfigError(f"{FAILS} (the prompt is empty).")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{FAILS} (the prompt is not Unicode text: {error}).") from None
    return text
