"""Renders a chat template; run as a script in a separate process, with a limit in seconds.

The seconds are of processor time, and begin once jinja2 is imported.

A template is a program that came with the weights. Jinja's sandbox keeps it from files and Python's
internals, but not from computing for ever: `10 ** 10 ** 10` is one step of the interpreter, which
no limit on loops or ranges and no thread can end. The limits of a process can, for whatever the
template does.
"""

import bisect
import contextlib
import datetime
import json
import math
import re
import resource
import secrets
import sys
import time
from collections.abc import Callable, ItemsView, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from jinja2.parser import Parser

Variables = dict[str, Any]  # JSON

MAX_MEMORY_BYTES = 1 << 30  # bytes
# Characters of a prompt: some for a template's own instructions, and a multiple of those of the
# conversation as JSON, for a few words around each message.
ADDED_CHARACTERS = 1 << 16
CHARACTERS_FACTOR = 10
MAX_PROMPT_CHARACTERS = 1 << 22  # and no more than this
MOST_CHARACTERS = 300  # characters of an error
# Names of one thing: what the model thought before its answer. As in transformers, templates that
# read another than a message has find it too.
THOUGHTS = ("reasoning_content", "thinking", "reasoning")


def main() -> None:
    """Reads a request from stdin, sets the limits, and writes its answer to stdout."""
    import jinja2.sandbox  # noqa: F401, which takes longer than a usual template

    request = json.load(sys.stdin.buffer)
    for limit, most in (
        (resource.RLIMIT_CPU, math.ceil(time.process_time()) + int(sys.argv[1])),
        (resource.RLIMIT_DATA, MAX_MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # a lower limit stays
            resource.setrlimit(limit, (most, most))
    sys.stdout.buffer.write(json.dumps(answer(request)).encode())


def answer(request: Variables) -> Variables:
    """Renders {"template": text, "batch": [variables], "marks": whether to find marks}.

    Returns {"rendered": [...], "read": [name], "unread": [name]}, or {"error": text} of a template
    that is no Jinja. Rendered is {"text": text, "marked": [[begin, stop]]}, the characters within
    `{% generation %}`, None if the template hides where they are; or {"error": text}. Unread are
    the variables, and the keys of messages, that the template reads in none of those that it
    renders.
    """
    from jinja2 import meta

    batch = request["batch"]
    environment, marks = _environment()
    try:
        compiled = environment.from_string(request["template"])
        variables = meta.find_undeclared_variables(environment.parse(request["template"]))
    except Exception as error:  # such as one of a parser that is too deep in itself
        return {"error": _text_of(error)}
    _Message.seen.clear()
    rendered = []
    given: set[str] = set()
    keys: set[str] = set()
    for each in batch:
        try:
            marks.now = datetime.datetime.now()
            most = min(
                MAX_PROMPT_CHARACTERS, ADDED_CHARACTERS + CHARACTERS_FACTOR * len(json.dumps(each))
            )
            text = _text(compiled.generate(**_prepared(each)), most)
            made: Variables = {"text": text}
            if request["marks"]:
                made["marked"] = _marked(compiled, each, marks, text)
            rendered.append(made)
        except Exception as error:  # a template may raise anything
            rendered.append({"error": _text_of(error)})
            continue
        given.update(each)
        for message in each["messages"]:
            keys.update(message)
    seen = {*_Message.seen, "role"}
    if not seen.isdisjoint(THOUGHTS):
        seen.update(THOUGHTS)
    unread = sorted(given - variables)
    if "messages" not in unread:
        unread += [f"messages.{key}" for key in sorted(keys - seen)]
    read = [f"messages.{key}" for key in sorted(seen)]
    return {"rendered": rendered, "read": read, "unread": unread}


def _marked(
    compiled: "Template", variables: Variables, marks: "_Marks", text: str
) -> list[tuple[int, int]] | None:
    """Returns where in a text what is within `{% generation %}` stands.

    The template is rendered again with marks around it, as a macro or a `{% set %}` may put what it
    made before, or elsewhere. Returns None where the text is another with the marks.
    """
    marks.are_written = True
    try:
        whole = _text(compiled.generate(**_prepared(variables)), 2 * MAX_PROMPT_CHARACTERS)
    except Exception:  # a template may raise anything
        return None
    finally:
        marks.are_written = False
    return marks.spans(whole, text)


class _Marks:
    """Marks around what is within `{% generation %}`, which no text can hold by chance.

    They are of digits, which pass through every filter of a template.
    """

    are_written = False
    now: datetime.datetime  # of the conversation, so that it is rendered twice alike

    def __init__(self) -> None:
        self.begin = str(secrets.randbits(128) | 1 << 127)
        self.stop = str(secrets.randbits(128) | 1 << 127)

    def note(self, caller: Callable[[], str]) -> str:
        text = caller()
        if self.are_written:
            return f"{self.begin}{text}{self.stop}"
        return text

    def spans(self, marked: str, text: str) -> list[tuple[int, int]] | None:
        """Returns where what is marked begins and ends in the text without marks."""
        bare = ""
        begun = []
        found = []
        for part in re.split(f"({self.begin}|{self.stop})", marked):
            if part == self.begin:
                begun.append(len(bare))
            elif part == self.stop and begun:
                found.append((begun.pop(), len(bare)))
            elif part == self.stop:
                return None
            else:
                bare += part
        if bare == text:
            return sorted(found)
        # A filter that takes spaces at the ends, or changes the case, sees the marks.
        before = [at for at, letter in enumerate(bare) if not letter.isspace()]
        after = [at for at, letter in enumerate(text) if not letter.isspace()]
        if [bare[at].lower() for at in before] != [text[at].lower() for at in after]:
            return None
        moved = []
        for begin, stop in sorted(found):
            first = bisect.bisect_left(before, begin)
            last = bisect.bisect_left(before, stop)
            if first < last:
                moved.append((after[first], after[last - 1] + 1))
        return moved


class _Message(dict[str, object]):
    """A message that notes which of its keys are read."""

    seen: ClassVar[set[str]] = set()

    def __getitem__(self, key: str) -> object:
        self.seen.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.seen.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: object = None) -> object:
        self.seen.add(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        self.seen.update(self.keys())
        return super().__iter__()

    # json's encoder, and so tojson, reads a message by it
    def items(self) -> ItemsView[str, object]:  # type: ignore[override]
        self.seen.update(self.keys())
        return super().items()


def _prepared(variables: Variables) -> Variables:
    """Returns variables as transformers hands them to a template.

    A key of a message without a value is left out, as tables have those of other rows, but for its
    content: templates ask whether that of a tool call is none.
    """
    messages = []
    for message in variables["messages"]:
        made = {}
        for key, value in message.items():
            if value is not None or key == "content":
                made[key] = value
        thoughts = [made[key] for key in THOUGHTS if key in made]
        if thoughts:
            made = {"thinking": thoughts[0], **made, "reasoning_content": thoughts[0]}
        messages.append(_Message(made))
    return {"tools": None, "documents": None, **variables, "messages": messages}


def _text(parts: Iterator[str], most: int) -> str:
    from jinja2 import TemplateError

    length = 0
    texts = []
    for part in parts:
        texts.append(part)
        length += len(part)
        if length > most:
            raise TemplateError(f"a prompt of more than {most:,} characters")
    return "".join(texts)


def _text_of(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"it needs more than {MAX_MEMORY_BYTES >> 20} MiB"
    text = str(error)
    if not type(error).__module__.startswith("jinja2"):
        text = f"{type(error).__name__}: {text}"
    return "".join(c if c.isprintable() else " " for c in text[:MOST_CHARACTERS])


def _environment() -> tuple["Environment", _Marks]:
    """Returns Jinja's sandbox with the tag and the functions of chat templates."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    marks = _Marks()

    class Generation(Extension):
        tags = frozenset({"generation"})  # type: ignore[assignment]  # a set that nobody changes

        def parse(self, parser: "Parser") -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

        def note(self, caller: Callable[[], str]) -> str:
            return marks.note(caller)

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(
        value: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: marks.now.strftime(form)
    return environment, marks


if __name__ == "__main__":
    main()
