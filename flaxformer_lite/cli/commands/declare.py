"""Declares a command, and each flag that several commands have, once."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from flaxformer_lite.cli import command_line
from flaxformer_lite.config.choices import DTYPES

RARELY = "rarely needed"  # the heading of a command's second group of flags


class Flags(Protocol):
    """A parser, or a group of its flags."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action: ...


AddArguments = Callable[[argparse.ArgumentParser, Flags], None]

# The flags that several commands have, by name.
SHARED: dict[str, dict[str, Any]] = {
    "adapter": {
        "metavar": "DIR",
        "type": command_line.model,
        "help": "LoRA adapter of the model, as PEFT saves it",
    },
    "base": {
        "metavar": "DIR",
        "type": command_line.model,
        "help": "where the frozen weights of a run are now, if they were moved",
    },
    "batch_size": {
        "type": command_line.integer(1),
        "metavar": "INT",
        "help": "examples per batch (default: the run's)",
    },
    "columns": {
        "type": command_line.text,
        "metavar": "ROLE=NAME,...",
        "help": "columns of the table, or text=FIELD for text (default: the run's)",
    },
    "data": {
        "required": True,
        "metavar": "FILE",
        "type": command_line.data,
        "help": "table or text to read",
    },
    "document_prompt": {
        "type": command_line.text,
        "metavar": "TEXT",
        "help": "prompt before each document (default: the model's, named document)",
    },
    "dtype": {
        "choices": DTYPES,
        "default": "float32",
        "help": "dtype of weights and arithmetic (default: %(default)s)",
    },
    "family": {
        "metavar": "MODULE:MODEL",
        "help": "your own model family that reads the directory",
    },
    "file": {
        "type": command_line.path,
        "help": "file with one text per line, or - for stdin",
    },
    "json": {"action": "store_true", "help": "print one JSON object"},
    "length": {
        "type": command_line.integer(1),
        "metavar": "INT",
        "help": "tokens per example (default: the run's)",
    },
    "model": {
        "required": True,
        "metavar": "DIR",
        "type": command_line.model,
        "help": "published weights, or the --workdir of train",
    },
    "query_prompt": {
        "type": command_line.text,
        "metavar": "TEXT",
        "help": "prompt before each query (default: the model's, named query)",
    },
    "size": {
        "type": command_line.integer(1),
        "metavar": "INT",
        "help": "values of a vector that are kept, the first ones (default: as the model's files"
        " say, or all)",
    },
    "text": {
        "action": "append",
        "type": command_line.text,
        "default": [],
        "help": "a text; may be repeated",
    },
    "top_k": {
        "type": command_line.integer(1),
        "metavar": "INT",
        "help": "number of answers to show (default: %(default)s)",
    },
    "workdir": {
        "type": command_line.place,
        "metavar": "DIR",
        "help": "folder, or gs:// or s3:// address, for everything that a run writes",
    },
}


class Command(NamedTuple):
    """One command, whose errors failures.py explains.

    Attributes:
      summary: its line in the list of commands.
      add_arguments: declares its flags, given the parser and the group of rarely needed ones; its
        docstring is the command's description.
      examples: its arguments, or a line for a shell.
      takes_config: whether it has --config and its fields.
      environment: variables that must be set before jax is imported.
      runs: the module whose `run` takes the arguments; "" is the file of the command's name in cli.
    """

    summary: str
    add_arguments: AddArguments
    examples: tuple[str, ...]
    takes_config: bool
    environment: Callable[[argparse.Namespace], Mapping[str, str]]
    runs: str


def declare_command(
    summary: str,
    *examples: str,
    takes_config: bool = False,
    environment: Callable[[argparse.Namespace], Mapping[str, str]] = lambda _: {},
    runs: str = "",
) -> Callable[[AddArguments], Command]:
    """Makes a command of the function that declares its flags."""

    def declare(add_arguments: AddArguments) -> Command:
        return Command(summary, add_arguments, examples, takes_config, environment, runs)

    return declare


def add_shared(flags: Flags, *names: str, **changes: Any) -> None:
    """Adds flags of SHARED to a command, with `changes` to what they have elsewhere."""
    for name in names:
        flags.add_argument(f"--{name}", **SHARED[name] | changes)
