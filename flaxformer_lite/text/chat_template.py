"""Chat templates, rendered in processes that end if the template does not."""

import functools
import json
import logging
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.text import render_template

LOG = logging.getLogger("flaxformer_lite")
MORE_TEMPLATES = "additional_chat_templates"  # a folder of templates by name, beside the default
START_SECONDS = (
    2  # of processor time after the import of jinja2; a usual template takes milliseconds
)
SECONDS_PER_CONVERSATION = 0.02  # seconds more for each conversation
MAX_WALL_SECONDS = 600  # seconds, on a machine that gives the process no time
CONVERSATION_BATCH = 2048  # conversations rendered by one process
BATCH_BYTES = 1 << 24  # of them; texts, requests and answers take a multiple of it
FAILS = "chat: the model's template fails on this conversation"


class Rendered(NamedTuple):
    """A conversation as text, or why the template does not render it."""

    text: str = ""
    # [begin, stop] of what is within `{% generation %}`; None if that is hidden
    marked: Sequence[Sequence[int]] | None = ()
    error: str = ""


def render(template: str, batch: list[Json]) -> list[str]:
    """Renders a template once for each object of variables.

    Raises:
      ConfigError: the template fails, refuses the messages, renders nothing or what is no Unicode,
        or exceeds the limits of text/render_template.py.
    """
    texts = []
    for each in render_each(template, batch):
        if each.error:
            raise ConfigError(f"{FAILS} ({each.error}).")
        texts.append(each.text)
    return texts


def render_each(template: str, batch: list[Json], *, marks: bool = False) -> list[Rendered]:
    """Renders a template for each object of variables; says of each whether it fails.

    Names the variables and the keys of messages that the template never reads, once.

    Args:
      template: Jinja source.
      batch: the variables of each.
      marks: whether to find what is within `{% generation %}`.

    Raises:
      ConfigError: the template is no Jinja, or exceeds the limits.
    """
    made = []
    unread: set[str] = set()
    read: set[str] = set()
    for portion in _portions(batch):
        answer = _in_process({"template": template, "batch": portion, "marks": marks})
        if "error" in answer:
            raise ConfigError(f"{FAILS} ({answer['error']}).")
        made += [_checked(Rendered(**each)) for each in answer["rendered"]]
        unread.update(answer["unread"])
        read.update(answer["read"])
    _tell_unread(template, tuple(sorted(unread - read)))
    return made


def join_named(templates: Mapping[str, str]) -> str:
    """Returns one template in the place of several with names, as transformers chooses among them.

    A conversation with tools is rendered by `tool_use`, others by `default`.

    Args:
      templates: Jinja sources by name, one at least.
    """
    lacks = (
        f"of the chat templates {', '.join(sorted(templates))} none is named default; put one into"
        " the folder as chat_template.jinja"
    )
    default = templates.get("default", f"{{{{ raise_exception({json.dumps(lacks)}) }}}}")
    if "tool_use" not in templates:
        return default
    # A block takes the line end behind it. The `+` keeps the spaces before it, and the last line
    # end goes as it does at the end of a template.
    tools = re.sub(r"\r?\n\Z", "", templates["tool_use"])
    others = re.sub(r"\r?\n\Z", "", default)
    return (
        f"{{% if tools is defined and tools is not none %}}\n{tools}"
        f"{{%+ else %}}\n{others}{{%+ endif %}}"
    )


def _portions(batch: Sequence[Json]) -> Iterator[list[Json]]:
    """Yields conversations that one process has the memory for."""
    portion: list[Json] = []
    size = 0
    for each in batch:
        length = len(json.dumps(each))
        if portion and (len(portion) == CONVERSATION_BATCH or size + length > BATCH_BYTES):
            yield portion
            portion = []
            size = 0
        portion.append(each)
        size += length
    if portion:
        yield portion


@functools.cache
def _tell_unread(template: str, names: tuple[str, ...]) -> None:
    # those that every conversation gets, whatever its template reads
    ours = re.compile("add_generation_prompt|[a-z]+_token")
    told = [name for name in names if not ours.fullmatch(name)]
    if told:
        LOG.warning("the chat template never reads %s.", ", ".join(told))


def break_special_tokens(value: object, pattern: re.Pattern[str], guard: str) -> Any:
    """Returns messages as JSON with the spelling of each special token within them broken.

    A guard stands after the token's first character.
    """
    if isinstance(value, str):
        return pattern.sub(lambda match: f"{match[0][0]}{guard}{match[0][1:]}", value)
    if isinstance(value, dict):
        # keys too, as tojson writes those of a tool call's arguments
        return {
            break_special_tokens(key, pattern, guard): break_special_tokens(item, pattern, guard)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [break_special_tokens(item, pattern, guard) for item in value]
    if value is None or isinstance(value, (int, float)):
        return value
    return str(value)  # a date of a table, or bytes, which JSON has not


def _in_process(request: Json) -> Json:
    """Returns render_template.answer of a request, made in a process with limits."""
    sent = json.dumps(request).encode()
    seconds = START_SECONDS + math.floor(SECONDS_PER_CONVERSATION * len(request["batch"]))
    try:
        command = [sys.executable, "-P", render_template.__file__, str(seconds)]
        patience = MAX_WALL_SECONDS + 10 * (seconds - START_SECONDS)
        done = subprocess.run(
            command, input=sent, capture_output=True, timeout=patience, check=True
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{FAILS} (it does not end within {patience} s).") from None
    except subprocess.CalledProcessError as error:
        last_line = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        limits = f"{seconds} s of processor time, {render_template.MAX_MEMORY_BYTES >> 20} MiB"
        reason = f"its process ended: {last_line}"
        if error.returncode < 0:
            reason = f"it does not end within {limits}"
        raise ConfigError(f"{FAILS} ({reason}).") from None
    return json.loads(done.stdout)


def _checked(rendered: Rendered) -> Rendered:
    """Returns what was rendered; one that is empty or no Unicode as an error."""
    if rendered.error:
        return rendered
    if not rendered.text:
        return Rendered(error="the prompt is empty")
    try:
        rendered.text.encode()
    except UnicodeEncodeError as error:
        return Rendered(error=f"the prompt is not Unicode text: {error}")
    return rendered
