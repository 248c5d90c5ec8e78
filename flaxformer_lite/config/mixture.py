"""The config of a mixture: its sources by name, and the changes of their weights."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from flaxformer_lite import registry
from flaxformer_lite.config import choices
from flaxformer_lite.config.rules import (
    ConfigError,
    DataPlace,
    NotNegative,
    OneOf,
    Record,
    format_value,
    raise_if_invalid,
)

MAX_SOURCES = 256  # sources
CHANGE = r"(?:(\d+)-)?(\d+):((?:[\w ]+=[^=,;]+,?)+)"  # FROM-TO: name=weight, name=weight


class Change(NamedTuple):
    """New weights of some sources, reached in a straight line between two steps, or at once."""

    begin: int
    end: int  # the last step, counted from 1, without the new weights
    weights: dict[str, float]


def read_changes(text: str) -> list[Change]:
    """Parses `9000: books=3, web=0.1; 10000-12000: books=5`.

    Weights change after step 9000, and linearly between 10000 and 12000.

    Raises:
      ValueError: it is not of this form; says why.
    """
    changes: list[Change] = []
    for part in filter(None, map(str.strip, text.split(";"))):
        match = re.fullmatch(CHANGE, part)
        if not match:
            raise ValueError(
                f"{format_value(part)} must be like 9000: books=3, web=0.1 or 8000-9000: books=3."
            )
        pairs = [pair.split("=") for pair in match[3].split(",") if pair.strip()]
        weights = {name.strip(): _weight(value, part) for name, value in pairs}
        end = int(match[2])
        begin = end if match[1] is None else int(match[1])
        earliest = changes[-1].end if changes else 0
        if not earliest <= begin <= end < 2**31 or len(weights) < len(pairs):
            raise ValueError(
                f"{part!r} must follow the change before it, end after it begins, and name a source"
                " once."
            )
        changes.append(Change(begin, end, weights))
    return changes


def _weight(value: str, part: str) -> float:
    try:
        weight = float(value)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < 1e30:
        raise ValueError(f"{format_value(part)} has a negative or non-numeric weight.")
    return weight


def is_source_path(field: str) -> bool:
    """Returns whether a field is the path of a source, which may differ where data.path may.

    The field is given by its full name.
    """
    return re.fullmatch(r"data\.mixture\.\w+\.path", field) is not None


def is_schedule(value: str) -> str:
    try:
        read_changes(value)
    except ValueError as error:
        return str(error)
    return ""


@dataclass(frozen=True, kw_only=True)
class SourceConfig(Record):
    path: DataPlace = ""  # of its text, as data.path
    corpus: Annotated[str, OneOf(("", *choices.CORPORA))] = ""  # or a built-in one
    text_field: str = ""  # as data.text_field; empty: that
    weight: NotNegative = 1.0  # its rows beside those of others; with a temperature, a factor of it
    # how often its rows may be read before it leaves the mixture; 0: without end
    epochs: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.path) == bool(self.corpus):
            raise ConfigError(
                f"path={self.path!r}: give the source a path, or a built-in corpus, and not both."
            )


def check_mixture(data: Any) -> None:
    """Checks the fields about a mixture in a data section together.

    Raises:
      ConfigError: names the field, the rule and the way out.
    """
    sources = data.mixture
    schedule = data.mixture_schedule
    if not sources:
        needs_sources = "is for the sources of data.mixture, and there are none; name some."
        if schedule:
            raise_if_invalid("mixture_schedule", schedule, needs_sources)
        if data.mixture_temperature:
            raise_if_invalid("mixture_temperature", data.mixture_temperature, needs_sources)
        return
    if data.path:
        rule = "is one text, and data.mixture names others; empty one of them."
        raise_if_invalid("path", data.path, rule)
    if data.eval_path:
        rule = "is not for a mixture, which holds out a share of each source; leave it empty."
        raise_if_invalid("eval_path", data.eval_path, rule)
    if len(sources) > MAX_SOURCES:
        raise_if_invalid(
            "mixture", len(sources), f"has more than {MAX_SOURCES} sources; join some."
        )
    for name in sources:
        if not re.fullmatch(r"[A-Za-z]\w*", name):
            raise_if_invalid("mixture", name, "a name has letters, digits and _ only.")
    changes = read_changes(schedule)
    has_weight = any(source.weight for source in sources.values())
    if not has_weight and not any(change.end == 0 for change in changes):
        raise ConfigError("mixture: no source has a weight; raise one above 0.")
    for change in changes:
        for name in change.weights:
            if name not in sources:
                near = registry.did_you_mean(name, list(sources))
                rule = f"no source {name!r}{near}; the mixture has {', '.join(sources)}."
                raise_if_invalid("mixture_schedule", schedule, rule)
