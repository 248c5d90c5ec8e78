"""Rules for the values of config fields, in their annotations, which their `Record` checks.

    steps: Size = 1000
    schedule: Annotated[str, OneOf(choices.SCHEDULES)] = "cosine"

A rule is a function from a value to the sentence that the value breaks, or an empty string.
"""

import dataclasses
import functools
import numbers
import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from flaxformer_lite import registry
from flaxformer_lite.config import choices

MAX_INT32 = 2**31 - 1  # the largest integer of a device
MAX_FLOAT32 = 3.4e38  # floats beyond are infinite on a device
MOST_TRACED = 1000  # steps of a trace; a step of a large model writes megabytes
SECRET = re.compile(r"(?<=://)[^/,\s'\"]*@|(?<=\?)[\w.-]+=[^,\s'\"]*")  # in an address
HUB = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")  # a model, and its revision
# A dataset, its revision, and a config, split, folder or file in it. As in the Hub's file system, a
# revision has slashes only if the Hub made it: refs/convert/parquet.
DATASET = re.compile(
    r"hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/\w+/\w+|[\w.-]+))?((?:/[\w.+=-][\w.+= -]*)*)/?"
)
LONGEST_VALUE = 160  # most letters of a value in a message


class ConfigError(ValueError):
    """A config that cannot work; the message names the field, the rule and the way out."""


class PluginError(ConfigError):
    """A file names a plug-in outside the package that the caller has not allowed."""


class Range(NamedTuple):
    """The rule that a number is within bounds; `words` states them in a message."""

    least: float
    most: float
    words: str

    def __call__(self, value: float) -> str:
        # NaN is in no range
        return "" if self.least <= value <= self.most else f"must {self.words}."


class OneOf(NamedTuple):
    """The rule that a value is one of a few names."""

    names: tuple[str, ...]

    def __call__(self, value: str) -> str:
        if value in self.names:
            return ""
        near = registry.did_you_mean(value, list(self.names))
        return f"no {format_value(value)}{near}; choose from {', '.join(self.names)}."


class Plugin(NamedTuple):
    """The rule that a value names a file in a folder of the package, or module:attribute.

    Files of the package are not imported if they are `later`, so that reading a config does not
    wait for them.
    """

    folder: str
    others: tuple[str, ...] = ()
    later: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return *self.others, *registry.available(self.folder)

    def __call__(self, value: str) -> str:
        if self.later and value in self.names:
            return ""
        try:
            if value not in self.others:
                registry.resolve(self.folder, value)
        except ValueError as error:
            return str(error)
        return ""


class PluginName(NamedTuple):
    """Marks a field that names a file in a folder of the package, or module:attribute.

    The name is resolved later.
    """

    folder: str

    def __call__(self, value: object) -> str:
        return ""


@dataclasses.dataclass(frozen=True)
class Mark:
    """Marks in the annotation of a field what changing the field affects."""

    about: str


MAY_CHANGE = Mark("says what a run writes and where, so it may change between starts")
REORDERS_SUMS = Mark("the same sums in another order, so it may change, with a notice")
OF_INIT = Mark("what new weights are drawn from; those of a checkpoint are not")
OF_TASK = Mark("belongs to the head, and not to the weights below it")


def is_local(value: str) -> str:
    """Refuses the address of a bucket, which would become a local folder named `gs:`."""
    if not re.match(r"\w+://", value):
        return ""
    return (
        "not a local path, and only local files are read and written; mount the bucket (gcsfuse,"
        " mountpoint-s3) or copy it, and pass that folder."
    )


def is_place(value: str) -> str:
    """Rejects misspelled addresses, and those of stores that are not supported."""
    for part in value.split(","):
        if "://" not in part:
            continue
        match = SECRET.search(part)
        if match:
            # the `?` of a local pattern such as part-?x=1 is one letter
            pattern = "" if match[0].endswith("@") else " In a pattern, write * for ?."
            return (
                "an address must hold no keys or tokens, as addresses are stored and printed; set"
                " the store's own variables or files, such as AWS_ACCESS_KEY_ID, and leave them"
                f" out.{pattern}"
            )
        names = part.partition("://")[2].rstrip().removesuffix("/").split("/")
        if {"", ".", ".."} & set(names[1:]):  # libraries leave these out, and so read another
            return (
                "an address needs a name between two slashes, and not . or .., as in"
                " gs://BUCKET/FOLDER/NAME."
            )
    for scheme in re.findall(r"(?:^|,)\s*(\w[\w+.-]*)://", value):
        if scheme not in choices.STORES:
            known = " and ".join(f"{name}://" for name in choices.STORES)
            return (
                f"{scheme}:// is not read or written, only {known} and local paths; copy it there,"
                " and pass that."
            )
    match = re.search(rf"(?:^|,)\s*({'|'.join(choices.STORES)}):(?!//[^/])", value)
    if match:
        return f"an address has a bucket behind two slashes, {match[1]}://BUCKET/NAME."
    return ""


def is_model_place(value: str) -> str:
    """Rejects what is_place does, except for models on the Hugging Face Hub."""
    if not value.startswith("hf:"):
        return is_place(value)
    if HUB.fullmatch(value):
        return ""
    return (
        "a model on the hub is hf://ORG/NAME, or hf://ORG/NAME@REVISION, such as"
        " hf://openai-community/gpt2."
    )


def is_data_place(value: str) -> str:
    """Rejects what is_place does, except for datasets on the Hugging Face Hub."""
    others = []
    for part in value.split(","):
        address = part.strip()
        if not address.startswith("hf:"):
            others.append(part)
        elif not DATASET.fullmatch(address) or {".", ".."} & {*address.split("/")}:
            return (
                "data on the hub is hf://datasets/ORG/NAME, or hf://datasets/ORG/NAME@REVISION, and"
                " may go on with a config and a split, such as"
                " hf://datasets/nyu-mll/glue/sst2/validation."
            )
    return is_place(",".join(others))


def is_interval(value: str) -> str:
    """Checks the form START:STOP of a few steps, both included and counted from 1."""
    match = re.fullmatch(r"([1-9]\d{0,8}):([1-9]\d{0,8})", value)
    if not value or (match and 0 <= int(match[2]) - int(match[1]) < MOST_TRACED):
        return ""
    return (
        f"must be START:STOP, the first and the last step, such as 20:29, and at most {MOST_TRACED}"
        " steps."
    )


def is_given(value: str) -> str:
    return "" if value.strip() else "must not be empty."


def is_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        return f"not a regular expression ({error})."
    return ""


def is_token(value: str) -> str:
    if not value or value.split() != [value]:
        return "must be a token without spaces, such as <tool>."
    return ""


def is_rate(value: str) -> str:
    """Checks the form "pattern=factor"; the pattern may hold further equals signs."""
    pattern, _, factor = value.rpartition("=")
    try:
        number = float(factor)
    except ValueError:
        number = 0.0
    if not (pattern and 0 < number <= MAX_FLOAT32):
        return 'must be "pattern=factor", such as "token_embed=0.1", with a positive factor.'
    return is_pattern(pattern)


def is_text(value: str) -> str:
    written = value.encode(errors="replace").decode() == value and "\0" not in value
    return "" if written else "must be text that UTF-8 can write, without NUL."


Int = Annotated[int, Range(-MAX_INT32, MAX_INT32, "be between -2**31 and 2**31")]
Size = Annotated[int, Range(1, MAX_INT32, "be positive, and below 2**31")]
TokenId = Annotated[int, Range(-1, MAX_INT32, "be a token's id, or -1 for none")]
Count = Annotated[int, Range(0, MAX_INT32, "not be negative, and be below 2**31")]
Float = Annotated[float, Range(-MAX_FLOAT32, MAX_FLOAT32, "be finite")]
Positive = Annotated[float, Range(1e-30, MAX_FLOAT32, "be positive, from 1e-30, and finite")]
NotNegative = Annotated[float, Range(0, MAX_FLOAT32, "not be negative, and be finite")]
Probability = Annotated[float, Range(0, 1 - 1e-9, "be a probability in [0, 1)")]
Share = Annotated[float, Range(1e-9, 1 - 1e-9, "be strictly between 0 and 1")]
Place = Annotated[str, is_place]  # a local path, or an address in a store
ModelPlace = Annotated[str, is_model_place]  # or a model on the Hub
DataPlace = Annotated[str, is_data_place]  # or a dataset on the Hub
# rules for all fields of a type, beside those that a field declares
RULES_OF_TYPE: dict[type, object] = {
    int: Int,
    float: Float,
    str: Annotated[str, is_text],
}


class Record:
    """Base class of all config records; rejects values that the field annotations do not allow."""

    def __post_init__(self) -> None:
        check_fields(type(self), vars(self))


class Sections(dict):
    """Records by name, as the value of a field that is annotated `dict[str, RECORD]`.

    It must not be changed.
    """

    def __hash__(self) -> int:  # type: ignore[override]  # configs are keys of caches
        return hash(tuple(self.items()))


def check_fields(cls: type, values: Mapping[str, object]) -> None:
    """Checks the values of a record's fields.

    Raises:
      ConfigError: one of them is not what its annotation declares.
    """
    for name, hint in declared_fields(cls).items():
        if name in values:
            raise_if_invalid(name, values[name], validation_error(hint, values[name]))


def raise_if_invalid(name: str, value: object, problem: str) -> None:
    """Raises ConfigError about a field if there is a problem with its value."""
    if problem:
        raise ConfigError(f"{name}={format_value(value)}: {problem}")


def plugin_field(folder: str, default: str) -> Any:
    """Declares a field that holds a plug-in's own record, chosen by its `name` key."""
    return dataclasses.field(
        default_factory=lambda: registry.resolve_class(folder, default)(),
        metadata={"plugin": folder},
    )


def optional_plugin(folder: str) -> Any:
    """Declares a field that holds a plug-in's own record, or None, written as an empty `name`."""
    return dataclasses.field(default=None, metadata={"plugin": folder})


def plugin_name(value: object) -> str:
    """Returns the name of a plug-in's record: its file name, or `module:Class` from outside."""
    return registry.name_of(type(value))


def declared_fields(cls: type) -> dict[str, Any]:
    """Returns the annotations of the fields that a config sets.

    A plug-in's annotation is the base class of its folder.
    """
    return _declared(cls)


# apart, as mypy takes no class for the hashable argument of a cached function that is imported
@functools.cache
def _declared(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    settable = {}
    for field in dataclasses.fields(cls):
        if not field.init or "internal" in field.metadata:
            continue
        hint = hints[field.name]
        if "plugin" in field.metadata:
            hint = registry.base_of(field.metadata["plugin"])
            if field.default is None:
                hint = hint | None
        settable[field.name] = hint
    return settable


def strip_annotation(hint: object) -> Any:
    """Returns the type of an annotation without `Annotated` and `| None`.

    A union of several types is returned as it is.
    """
    if typing.get_origin(hint) is Annotated:
        return strip_annotation(typing.get_args(hint)[0])
    inner = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    return strip_annotation(inner[0]) if _is_union(hint) and len(inner) == 1 else hint


def is_optional(hint: object) -> bool:
    return _is_union(hint) and types.NoneType in typing.get_args(hint)


def _is_union(hint: object) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def rules_of(hint: object) -> list[Any]:
    """Lists the rules of an annotation, and those of the items of a tuple."""
    if typing.get_origin(hint) is Annotated:
        kind, *rules = typing.get_args(hint)
        return [*rules, *rules_of(kind)]
    rules = []
    for inner in typing.get_args(hint):
        rules += rules_of(inner)
    return rules


def fields_with_mark(cls: type, *marks: Mark) -> tuple[str, ...]:
    """Lists the fields of a record that have one of the marks.

    Those of nested records are named like `data.cache`.
    """
    names: list[str] = []
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        kind = strip_annotation(hint)
        if any(mark in rules_of(hint) for mark in marks):
            names.append(name)
        elif isinstance(kind, type) and issubclass(kind, Record):
            names += [f"{name}.{inner}" for inner in fields_with_mark(kind, *marks)]
    return tuple(names)


def names_plugin(hint: object) -> bool:
    """Returns whether the values of an annotation are names of plug-ins."""
    return any(isinstance(rule, Plugin | PluginName) for rule in rules_of(hint))


def validation_error(hint: object, value: object) -> str:
    """Returns the rule of an annotation that a value breaks, or an empty string."""
    kind = strip_annotation(hint)
    if value is None and is_optional(hint):
        return ""
    if typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (...,):
        return _broken_tuple(kind, value)
    if typing.get_origin(kind) is dict:
        record = typing.get_args(kind)[1]
        if isinstance(value, dict) and all(isinstance(item, record) for item in value.values()):
            return ""
        return f"must be a section with a record of type {record.__name__} under each name."
    if kind is Any or not isinstance(kind, type):  # of a plug-in, which checks it itself
        return ""
    rules = [*rules_of(hint), *rules_of(RULES_OF_TYPE.get(kind))]
    if _is_instance(value, kind):
        return next(filter(None, (rule(value) for rule in rules if callable(rule))), "")
    wanted = kind.__name__
    if issubclass(kind, Record):
        wanted = f"a record of type {wanted}"
    for rule in rules:
        if isinstance(rule, str):
            wanted += rule
        elif isinstance(rule, OneOf):
            wanted += f", one of {', '.join(rule.names)}"
    if is_optional(hint):
        wanted += " or None"
    return f"must be {wanted}, not {type(value).__name__}.{_way_of_own(kind, rules, value)}"


def _way_of_own(kind: type, rules: list, value: object) -> str:
    """Returns how a person's own function or class becomes the value of a field."""
    if issubclass(kind, Record):
        if isinstance(value, (Record, type, str, int, float, dict)):
            return ""
        return (
            f" One of your own derives from {kind.__module__}.{kind.__name__}, as a"
            " dataclass(frozen=True, kw_only=True)."
        )
    if not callable(value) or not any(isinstance(rule, Plugin) for rule in rules):
        return ""
    place = f"{value.__module__}:{getattr(value, '__qualname__', '')}"
    if "<" in place or place.endswith(":"):
        return " One of your own is named by its file, such as 'my_module:attend'."
    return f" Write its name, {place!r}."


def _broken_tuple(hint: object, value: object) -> str:
    kind = typing.get_args(hint)[0]
    if isinstance(value, tuple):
        for item in value:
            problem = validation_error(kind, item)
            if problem:
                return problem
        has_names = any(isinstance(rule, OneOf | Plugin) for rule in rules_of(kind))
        if has_names and len(set(value)) < len(value):
            return "must name each once."
        return ""
    meant = tuple(value) if isinstance(value, list) else (value,)
    if not _broken_tuple(hint, meant):
        return f"must be a tuple, {format_value(meant)}."
    example = ""
    for rule in rules_of(hint):
        if isinstance(rule, OneOf):
            example += f", such as {rule.names[:1]}"
    return f"must be a tuple{example}, not {type(value).__name__}."


def _is_instance(value: object, kind: type) -> bool:
    number = {int: numbers.Integral, float: numbers.Real}.get(kind)
    if number is None:
        return isinstance(value, kind)
    # True is a whole number to Python.
    return isinstance(value, number) and not isinstance(value, bool)


def format_value(value: object) -> str:
    """Formats a value for a message.

    A class is its name, a record has no fields, an address no secrets, and a long value is
    truncated.
    """
    if isinstance(value, type):
        return f"{value.__name__} (the class, without its parentheses)"
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}(...)"
    if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        comma = "," if len(value) == 1 else ""
        return f"({', '.join(map(format_value, value))}{comma})"
    try:
        text = repr(value)
    except Exception as error:  # such as an integer with more digits than Python prints
        return f"{type(value).__name__} ({error})"
    if "://" in text:
        text = SECRET.sub("***", text)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
