"""Declares a command, and the flags that several commands have."""

import argparse
from collections.abc import Callable, Mapping
from typing import NamedTuple

from flaxformer_lite.cli import command_line
from flaxformer_lite.config.choices import DTYPES


class Command(NamedTuple):
    """One command, whose errors failures.py explains.

    Attributes:
      summary: its line in the list of commands.
      add_arguments: declares its flags; its docstring is the command's description.
      examples: its arguments, or a line for a shell.
      takes_config: whether it has --config and its fields.
      environment: variables that must be set before jax is imported.
      runs: the module whose `run` takes the arguments; "" is the file of the command's name in cli.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
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
) -> Callable[[Callable[[argparse.ArgumentParser], None]], Command]:
    """Makes a command of the function that declares its flags."""

    def declare(add_arguments: Callable[[argparse.ArgumentParser], None]) -> Command:
        return Command(summary, add_arguments, examples, takes_config, environment, runs)

    return declare


def add_model(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the flags of commands that load a model."""
    parser.add_argument("--model", required=True, type=command_line.model, help=what)
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="dtype of weights and arithmetic (default: %(default)s)",
    )
    command_line.add_family(parser)
    command_line.add_base(parser)


def add_adapter(parser: argparse.ArgumentParser) -> None:
    """Adds the flag of commands that run a model with an adapter."""
    parser.add_argument(
        "--adapter",
        metavar="DIR",
        type=command_line.model,
        help="LoRA adapter of the model, as PEFT saves it",
    )


def add_task(parser: argparse.ArgumentParser, output: str) -> None:
    """Adds the flags of commands that run a model on a file of examples."""
    add = parser.add_argument
    add_model(parser, "the --workdir of train, or a directory of published weights")
    add("--data", required=True, type=command_line.data, help="file to read")
    add(
        "--output",
        metavar="FILE",
        type=command_line.new_file(".csv", ".tsv", ".jsonl"),
        help=output,
    )
    add(
        "--columns",
        type=command_line.text,
        metavar="ROLE=NAME,...",
        help="columns of the table, or text=FIELD for text (default: the run's)",
    )
    add(
        "--length",
        type=command_line.integer(1),
        metavar="INT",
        help="tokens per example (default: the run's)",
    )
    add(
        "--escape_formulas",
        action="store_true",
        help="in csv and tsv, put an apostrophe before texts that a spreadsheet would compute",
    )
    add(
        "--batch_size",
        type=command_line.integer(1),
        metavar="INT",
        help="examples per batch (default: the run's)",
    )


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of commands that search documents for queries."""
    for what in ("query", "document"):
        parser.add_argument(
            f"--{what}_prompt",
            type=command_line.text,
            metavar="TEXT",
            help=f"prompt to put before each {what} (default: the model's prompt named {what})",
        )
    add_size(parser)


def add_size(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that cuts vectors."""
    parser.add_argument(
        "--size",
        type=command_line.integer(1),
        metavar="INT",
        help="values of a vector that are kept, the first ones (default: truncate_dim of the"
        " model's files, or all)",
    )
