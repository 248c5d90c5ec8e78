"""Parsing of command lines, where errors become one line on stderr and an exit code."""

import argparse
import contextlib
import difflib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from flaxformer_lite import pages
from flaxformer_lite.cli import current_folder
from flaxformer_lite.config.architecture import OTHER_NAMES
from flaxformer_lite.config.rules import (
    SECRET,
    ConfigError,
    format_value,
    is_data_place,
    is_local,
    is_model_place,
    is_place,
    is_text,
)
from flaxformer_lite.files.home import expand_home
from flaxformer_lite.files.publish import check_writable
from flaxformer_lite.files.read import escape_controls, escape_unprintable

BAD_INPUT = 2  # exit codes
EXIT_FAILED = 1
MAX_INT32 = 2**31 - 1  # XLA's sizes
ADAPTER_RATE = 2e-4  # of the examples of PEFT and TRL
MAX_MESSAGE_CHARACTERS = 1500  # most characters of a message
MOST_TEXT = 1 << 24  # characters of a text from a file or a pipe
MOST_FIELDS = 4  # most fields to suggest
RAISED = re.compile(r"^[\w.]*\bConfigError: ")
NUMBERS = (  # pattern of a parser's message, our message
    (r"invalid literal for int\(\) with base 10: (.*)", r"must be a whole number, not \1."),
    (r"could not convert string to float: (.*)", r"must be a number, not \1."),
    (r"Non-boolean argument to boolean flag (.*)", r"must be true or false, not '\1'."),
)
# Our fields, by the names that other libraries give them.
ALIASES = OTHER_NAMES | {
    **dict.fromkeys(
        ("seq_len", "seq_length", "sequence_length", "max_seq_length"), ("length", "max_length")
    ),
    **dict.fromkeys(("model", "model_name_or_path"), ("init_from",)),
    **dict.fromkeys(("max_steps", "num_train_steps", "max_iters"), ("steps",)),
    **dict.fromkeys(("num_train_epochs", "num_epochs"), ("epochs",)),
    **dict.fromkeys(("gradient_accumulation_steps", "grad_accum"), ("accumulate",)),
    **dict.fromkeys(("max_grad_norm", "grad_clip"), ("clip_norm",)),
    "width": ("d_model",),
    "warmup_ratio": ("warmup_share",),
    "metric_for_best_model": ("best",),
    "early_stopping_patience": ("patience",),
    "ema_decay": ("ema",),
}


def config(argv: list[str]) -> Any:
    """Parses `--config=PAGE_OR_FILE --config.FIELD=VALUE ...` to a ConfigDict.

    On an error, prints one line and exits.
    """
    current_folder.import_from_here()
    page, *fields = argv
    if page.endswith(".gin"):
        fail(
            f"{page}: gin files are not read; a page is a Python file, and --config.FIELD=VALUE"
            " sets a field. docs/migration.md says which gin binding is which field.",
            BAD_INPUT,
        )
    try:
        values, rest = _parse([_located(page), *fields])
        is_config = hasattr(values, "items")  # raises if the page could not open a file
    except Exception as error:  # from absl, ml_collections, or the user's config file
        fail(explain(error, argv), BAD_INPUT)
    if rest:
        fail(f"{rest[0]!r} is not a flag; flags look like --config.train.steps=100.", BAD_INPUT)
    if not is_config:
        fail(
            f"{page}: get_config() returns {values!r}, but must return a ConfigDict, as"
            " to_config_dict(ExperimentConfig(...)) makes it.",
            BAD_INPUT,
        )
    return values


def _located(page: str) -> str:
    return f"--config={pages.locate(page.removeprefix('--config='))}"


def _parse(argv: list[str]) -> tuple[Any, list[str]]:
    from absl import flags
    from ml_collections import config_flags

    values = flags.FlagValues()
    line = ["", *argv]
    holder = config_flags.DEFINE_config_file(
        "config", None, "The experiment.", flag_values=values, sys_argv=line
    )
    pages = _Pages(values["config"].parser, argv)
    values["config"].parser = pages  # type: ignore[assignment]  # of the same form
    rest = values(line)
    return holder.value, rest[1:]


class _Pages:
    """A parser for the value of --config that adapts the page to the command line's plug-ins."""

    def __init__(self, pages: Any, argv: list[str]):
        self._pages = pages
        self._argv = argv
        self.syntactic_help = pages.syntactic_help
        self.flag_type = pages.flag_type

    def parse(self, path: Any) -> Any:
        from ml_collections import ConfigDict

        from flaxformer_lite.config import add_sections, choose_plugins

        page = self._pages.parse(path)
        if not isinstance(page, ConfigDict):
            return page
        flag = re.compile(r"^--?config\.([\w.]+)[=\n](.+)$", re.MULTILINE)
        given = dict(flag.findall("\n".join(self._argv)))
        plugins = {}
        for name, value in given.items():
            if name.endswith(".name"):
                plugins[name.removesuffix(".name")] = value
        try:
            choose_plugins(page, plugins)
        except ConfigError as error:
            fail(error, BAD_INPUT)
        add_sections(page, given)
        # A run has either steps or epochs: the one on the command line replaces the page's other.
        train = page.get("train", {})
        lengths = {}
        for field in ("steps", "epochs"):
            lengths[f"train.{field}"] = given.get(f"train.{field}", str(train.get(field, 0)))
        zeros = [name for name in lengths if name in given]
        if zeros and not any(length.strip("0.") for length in lengths.values()):
            fail(
                f"--config.{zeros[0]}={given[zeros[0]]}: a run takes one step or more; evaluate"
                " measures a model as it is.",
                BAD_INPUT,
            )
        for field, other in (("epochs", "steps"), ("steps", "epochs")):
            # "0" and "0.0" leave the page's other.
            if given.get(f"train.{field}", "0").strip("0.") and other in train:
                page.train[other] = 0
        optimizer = page.get("optimizer", {})
        if "optimizer.warmup_steps" in given and "warmup_share" in optimizer:
            optimizer.warmup_share = 0.0
        if "optimizer.warmup_share" in given and "warmup_steps" in optimizer:
            optimizer.warmup_steps = 0
        # A page for all weights has a rate that is too low for the few of an adapter.
        is_adapted = "model.adapter.name" in given and "optimizer.learning_rate" not in given
        if is_adapted and optimizer.get("learning_rate", ADAPTER_RATE) < ADAPTER_RATE:
            optimizer.learning_rate = ADAPTER_RATE
        return page


def explain(error: Exception, argv: list[str]) -> str:
    """Condenses an error of absl or ml_collections into one sentence.

    For an unknown field, the sentence has its full path and the nearest known field; for an
    exception in a config file, the last line of its message.
    """
    from absl import flags

    if isinstance(error, ConfigError):
        return str(error)
    page, *fields = argv
    wrong = _wrong_override(page, fields)
    if wrong:
        return wrong
    if isinstance(error, flags.Error):
        # the parser of bools raises with two arguments
        message = re.sub(r"\('(.*)', '(.*)'\)$", r"\1 \2", str(error))
        message = message.replace(_located(page), page)
        lines = [line for line in message.splitlines() if line.strip()]
        first = lines[0].split(": Error whilst")[0].removeprefix("flag ")
        if len(lines) > 1:
            return f"{first}: {RAISED.sub('', lines[-1])}"
        for pattern, rule in NUMBERS:
            first = re.sub(pattern, rule, first)
        return first
    return f"{page}: {type(error).__name__}: {error}"


def _wrong_override(page: str, fields: list[str]) -> str:
    """Describes the first --config.FIELD that is a section or unknown; "" if there is none."""
    try:
        plugins = [arg for arg in fields if re.match(r"--config\.[\w.]+\.name=", arg)]
        for source in re.findall(r"--config\.data\.mixture\.\w+", " ".join(fields)):
            plugins.append(f"{source}.path=x")
        values, _ = _parse([_located(page), *plugins])
        paths = list(_paths(values))
    except Exception:  # the page itself is at fault
        return ""
    sections = [section for section, _ in paths if section]
    leaves = [field for _, field in paths if field]
    for arg in fields:
        if not arg.startswith("--config."):
            continue
        name, _, value = arg.partition("=")
        path = name.removeprefix("--config.")
        if path in sections:
            inside = [leaf for leaf in leaves if leaf.startswith(f"{path}.")]
            if f"{path}.name" in inside:
                example = f"{path}.name={value or 'NAME'}"
            elif inside:
                example = f"{inside[0]}=VALUE"
            else:
                example = f"{path}.NAME.path=VALUE"
            return f"{name}: is a section of fields; set one of them, like --config.{example}"
        if path not in leaves:
            return f"{name}: no such field{_meant(path, leaves) or '.'}"
    return ""


def fields_meant(flag: str, argv: list[str]) -> str:
    """Returns "; did you mean --config.FIELD?" for an unknown flag, or "" if none is like it."""
    name = flag.partition("=")[0].removeprefix("--")
    given = [arg for arg in argv if arg.startswith("--config=")]
    # Without a page, one that is read in no time stands for all, as they have the same fields.
    try:
        values, _ = _parse([_located([*given, "--config=demo"][0])])
    except Exception:  # the page itself is at fault
        return ""
    return _meant(name, [field for _, field in _paths(values) if field])


def _meant(path: str, known: list[str]) -> str:
    meant = " or ".join(f"--config.{field}" for field in nearest_fields(path, known))
    if not meant:
        return ""
    return f"; did you mean {meant}?"


def _paths(values: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields (section, "") and ("", field) of a ConfigDict, with their full dotted names."""
    yield path, ""
    for name, value in values.items():
        below = f"{path}.{name}".lstrip(".")
        if hasattr(value, "items"):
            yield from _paths(value, below)
        else:
            yield "", below


def nearest_fields(path: str, known: list[str]) -> list[str]:
    """Returns the fields that a wrong path may mean, by the first rule that matches any.

    The rules, in order: the same last name or section, another library's name for it, the initials
    of its words (`lr`), a similar path, one of its words, a similar last name.
    """
    wanted = path.split(".")[-1]
    last = {name: name.split(".")[-1] for name in known}
    spelled = difflib.get_close_matches(path, known, n=1, cutoff=0.75)
    similar = difflib.get_close_matches(wanted, last.values(), n=1, cutoff=0.75)

    def is_same(name: str) -> bool:
        return name.endswith((f".{wanted}", f".{wanted}.name")) or name == f"{wanted}.name"

    def has_initials(name: str) -> bool:
        words = last[name].split("_")
        return len(words) > 1 and "".join(word[:1] for word in words) == wanted

    rules = (
        [name for name in known if is_same(name)],
        [name for name in known if last[name] in ALIASES.get(wanted, ())],
        [name for name in known if has_initials(name)],
        spelled,
        [name for name in known if wanted in last[name].split("_")],
        [name for name in known if last[name] in similar],
    )
    return next(filter(None, rules), [])[:MOST_FIELDS]


def text(value: str) -> str:
    """Parses text that can be encoded as UTF-8; an argparse type."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{value!r} is not UTF-8") from None
    return value


def read_text(file: str, flag: str) -> str:
    """Reads a file, or stdin for `-`, as UTF-8 text.

    Raises:
      ConfigError: it cannot be read, is not UTF-8, or is too long; the message names the flag.
    """
    try:
        if file == "-":
            text = sys.stdin.read(MOST_TEXT + 1)
        else:
            with Path(file).open(encoding="utf-8") as lines:
                text = lines.read(MOST_TEXT + 1)
        text.encode()  # some locales read other bytes as surrogates
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{flag}: cannot be read as UTF-8 text ({error}).") from None
    if len(text) > MOST_TEXT:
        raise ConfigError(f"{flag}: has more than {MOST_TEXT:,} characters; split it.")
    return text


def path(value: str, rule: Callable[[str], str] = is_local) -> str:
    """Parses a local file or folder, in which `~` is the home folder; an argparse type."""
    problem = is_text(value) or rule(value)
    if problem:
        is_safe = value.isprintable() and not SECRET.search(value)
        name = value if is_safe else format_value(value)
        raise argparse.ArgumentTypeError(f"{name}: {problem.rstrip('.')}")
    if not value.startswith("~"):
        return value
    with _worded():
        return str(expand_home(value))


def place(value: str) -> str:
    """Parses a local file or folder, or an address in an object store; an argparse type."""
    return path(value, is_place)


def model(value: str) -> str:
    """Parses a model's folder, address in an object store, or name on the Hub; an argparse type."""
    return path(value, is_model_place)


def data(value: str) -> str:
    """Parses files as `place` does, or a dataset on the Hub; an argparse type."""
    return path(value, is_data_place)


def file_of(*suffixes: str) -> Callable[[str], Path]:
    """Builds an argparse type for a file whose suffix selects its format."""

    def read(value: str) -> Path:
        file = Path(path(value))
        if file.suffix not in suffixes:
            raise argparse.ArgumentTypeError(f"{value}: must end in {' or '.join(suffixes)}")
        if file.is_dir():
            raise argparse.ArgumentTypeError(f"{value}: is a folder; name a file")
        return file

    return read


def new_file(*suffixes: str) -> Callable[[str], Path]:
    """Builds an argparse type for a file to write, in a folder that exists."""
    named = file_of(*suffixes)

    def read(value: str) -> Path:
        file = named(value)
        if not file.parent.is_dir():
            raise argparse.ArgumentTypeError(f"{value}: its folder does not exist; make it first")
        with _worded():
            check_writable(file)
        return file

    return read


def new_folder(value: str, rule: Callable[[str], str] = is_local) -> str:
    """Parses a folder to write, which must not exist yet; an argparse type."""
    folder = path(value, rule)
    if "://" not in folder:
        with _worded():
            check_writable(Path(folder))
    return folder


def new_model(value: str) -> str:
    """Parses a folder to write, or an address in a store or on the Hub; an argparse type."""
    return new_folder(value, is_model_place)


@contextlib.contextmanager
def _worded() -> Iterator[None]:
    """Turns a ConfigError into the error of an argparse type."""
    try:
        yield
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None


def integer(least: int, most: int = MAX_INT32) -> Callable[[str], int]:
    """Builds an argparse type for whole numbers in a range."""

    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"invalid int value: {value[:40]!r}") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{value[:40]}: must be at least {least}")
        if number > most:
            raise argparse.ArgumentTypeError(f"{value[:40]}: must be at most {most}")
        return number

    return read


def print_text(text: str, end: str = "\n") -> None:
    """Prints a text of a model or a file; what a terminal would obey is escaped there."""
    if sys.stdout.isatty():
        text = escape_controls(text)
    print(text, end=end, flush=True)


def print_stack() -> None:
    """Prints the traceback of the current error if --debug was given."""
    if "--debug" in sys.argv and sys.exception() is not None:
        traceback.print_exc()


def fail(message: object, code: int, *, at_once: bool = False) -> NoReturn:
    """Ends the program with one line on stderr, after the traceback if --debug was given.

    Args:
      message: what happened, and the way out.
      code: the exit code.
      at_once: whether to skip exit handlers, which might fail for the same reason.
    """
    print_stack()
    text = " ".join(str(message).split())
    if "://" in text:  # other parsers repeat what they refuse
        text = SECRET.sub("***", text)
    line = escape_unprintable(text)
    if len(line) > MAX_MESSAGE_CHARACTERS:
        line = f"{line[:MAX_MESSAGE_CHARACTERS]} ..."
    print(f"error: {line}", file=sys.stderr, flush=True)
    if at_once:
        with contextlib.suppress(OSError):  # a full disk
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)
