"""Trains, runs, converts and inspects BERT, GPT and T5 models from the command line."""

import argparse
import importlib
import importlib.metadata
import inspect
import os
import re
import sys
import textwrap
from typing import Any, NoReturn

import flaxformer_lite
from flaxformer_lite import hints, pages, private_names, registry
from flaxformer_lite.cli import command_line, current_folder, failures, interruption
from flaxformer_lite.cli.commands import COMMANDS, CONFIG_HELP, EVERYDAY, examples
from flaxformer_lite.cli.commands.declare import RARELY, Command
from flaxformer_lite.runtime import environment, invocation

EXAMPLES = (  # of the list of commands
    ("train", "--config=gpt2_tiny --workdir=runs/gpt2"),
    ("generate", '--model runs/gpt2 --prompt "def "'),
    ("convert", "runs/gpt2 published/gpt2"),
)
NOTES = """
A model is a directory with config.json, model.safetensors and a tokenizer, or the --workdir of
train. COMMAND --help lists its flags, which may be written with dashes or underscores.
"""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the width of the terminal, except those with indented lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            is_indented = "\n  " in paragraph
            paragraphs.append(paragraph if is_indented else textwrap.fill(paragraph, width))
        return "\n\n".join(paragraphs)


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line."""

    def __init__(self, prog: str, **options: Any):
        super().__init__(prog, allow_abbrev=False, formatter_class=Formatter, **options)

    def format_help(self) -> str:
        """Formats the help, whose first line names only what a command needs."""
        words = [self.prog]
        for action in private_names.flags(self):
            if action.dest == "command":
                words.append("COMMAND")
            elif action.required and not action.choices:
                value = action.metavar or action.dest.upper()
                words += [*action.option_strings[:1], str(value)]
            elif action.required and action.choices:
                words.append("{" + ",".join(map(str, action.choices)) + "}")
        self.usage = " ".join([*words, "[FLAGS]"])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        command_line.fail(f"{message}; {self.prog} --help shows examples.", command_line.BAD_INPUT)

    def known_flags(self) -> set[str]:
        known = set[str]()
        for action in private_names.flags(self):
            known |= set(action.option_strings)
        return known

    def refuse(self, unknown: list[str], fields: str = "") -> NoReturn:
        flag = next((arg.partition("=")[0] for arg in unknown if arg.startswith("--")), "")
        if not flag:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        named = []
        for action in private_names.flags(self):
            if not action.option_strings and action.required and not action.choices:
                named.append(str(action.metavar or action.dest))
        near = self._written_for(flag) or self._nearest(flag) or fields
        if not near and named:
            verb = "is" if len(named) == 1 else "are"
            near = f"; {' '.join(named)} {verb} given without a flag"
        self.error(f"{flag}: no such flag{near}")

    def _written_for(self, flag: str) -> str:
        """Returns "; write ..." for a flag of before, unless it names another command's flag."""
        command = self.prog.rpartition(" ")[2]
        write = hints.FLAGS.get(f"{command} {flag}") or hints.FLAGS.get(flag, "")
        name = re.split("[ ,]", write)[0]
        if not write or (name.startswith("--") and name not in self.known_flags()):
            return ""
        return f"; write {write}"

    def _nearest(self, flag: str) -> str:
        """Returns "; did you mean --X?", where the dashes that all have do not count."""
        names = [name.removeprefix("--") for name in self.known_flags() - {"--help"}]
        return registry.did_you_mean(flag.removeprefix("--"), names, before="--")

    def unknown(self, argv: list[str]) -> list[str]:
        """Lists the unknown flags.

        They are reported before argparse says that other flags are missing.
        """
        flags = argv[: argv.index("--")] if "--" in argv else argv
        known = self.known_flags()
        unknown = []
        for arg in flags:
            name = arg.partition("=")[0]
            is_field = name.startswith("--config.")
            if name.startswith("--") and not is_field and name not in known:
                unknown.append(arg)
        return unknown


def start(*command: str) -> None:
    """Runs the command line of this process, for the console script and train.py."""
    environment.configure()
    main([*command, *sys.argv[1:]])


def main(argv: list[str]) -> None:
    """Runs one command.

    An error ends it with one line on stderr, and exit code 2 on bad input, else 1. --debug shows
    the traceback.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell has closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        with interruption.interruptible():
            _main(argv)
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a library written in Rust raises no Exception when it panics
        command_line.fail(*failures.explain(error))


def _main(argv: list[str]) -> None:
    argv = invocation.underscored([arg for arg in argv if arg != "--debug"])
    if argv and not argv[0].startswith("-"):
        argv[0] = argv[0].replace("_", "-")
    parser = Parser(invocation.program("").strip(), description=__doc__, epilog=_list_commands())
    parser.add_argument(
        "--version", action="store_true", help="print the versions of the package, jax and flax"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    for name, command in COMMANDS.items():
        add = commands.add_parser(name, prog=invocation.program(name))
        if name in argv[:1]:
            chosen = add
            add.description = inspect.getdoc(command.add_arguments)
            add.epilog = examples(name)
            _add_arguments(add, command, argv)
    if "--version" in argv[:2]:
        versions = ", ".join(
            f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flax")
        )
        print(f"flaxformer_lite {flaxformer_lite.__version__} ({versions})")
        return
    if not argv:
        parser.print_help()
        return
    if not argv[0].startswith("-") and argv[0] not in COMMANDS:
        if argv[0] in hints.COMMANDS:
            parser.error(f"{argv[0]}: no such command; write {hints.COMMANDS[argv[0]]}")
        near = registry.did_you_mean(argv[0], list(COMMANDS))
        parser.error(f"{argv[0]}: no such command{near or '; there are ' + ', '.join(COMMANDS)}")
    asks_help = bool({"-h", "--help"} & set(argv))
    unknown = chosen.unknown(argv[1:]) if argv[0] in COMMANDS and not asks_help else []
    if unknown:
        near = ""
        if COMMANDS[argv[0]].takes_config:
            near = command_line.fields_meant(unknown[0], argv)
        chosen.refuse(unknown, near)
    args, others = parser.parse_known_args(argv)
    if not args.command:
        parser.error(f"a command is missing: {', '.join(COMMANDS)}")
    command = COMMANDS[args.command]
    if args.allow_plugins or getattr(args, "family", None):
        current_folder.import_from_here()
    of_model = getattr(args, "model", None)  # in place of a config, where a command takes either
    if others and (of_model or not command.takes_config):
        chosen.refuse(others)
    if command.takes_config and of_model and args.config:
        chosen.error("--model, --config: pass one of them")
    if command.takes_config and not of_model:
        if not args.config and others and others[0].partition(":")[0] in pages.names():
            args.config = others.pop(0)
            if "workdir" in args and args.workdir is None:
                args.workdir = f"runs/{args.config.replace(':', '_')}"
        if not args.config:
            flags = "--config"
            if "model" in args:
                flags = "--model or --config"
            command_line.fail(
                f"{flags} is missing; for example --config=demo", command_line.BAD_INPUT
            )
        args.overrides = [f"--config={args.config}", *others]
    os.environ.update(command.environment(args))
    of_core = f"flaxformer_lite.cli.{args.command.replace('-', '_')}"
    importlib.import_module(command.runs or of_core).run(args)


def _list_commands() -> str:
    lines = []
    for title, names in (("commands", EVERYDAY), ("more", COMMANDS.keys() - EVERYDAY.keys())):
        lines.append(f"{title}:")
        for name in COMMANDS:
            if name in names:
                lines.append(f"  {name:10}{COMMANDS[name].summary}")
        lines.append("")
    lines.append("examples:")
    for name, arguments in EXAMPLES:
        lines.append(f"  {invocation.program(name)} {arguments}")
    return "\n".join([*lines, NOTES])


def _add_arguments(parser: Parser, command: Command, argv: list[str]) -> None:
    if command.takes_config:
        parser.add_argument("--config", metavar="PAGE_OR_FILE", help=CONFIG_HELP)
        parser.add_argument(
            "--config.FIELD", metavar="VALUE", help="any field, such as --config.train.steps=100"
        )
    rarely = parser.add_argument_group(RARELY)
    command.add_arguments(parser, rarely)
    rarely.add_argument("--debug", action="store_true", help="show the traceback of an error")
    rarely.add_argument(
        "--allow_plugins",
        action="store_true",
        help="import the plug-ins (module:Class) that the files of a directory name; they run the"
        " code of whoever wrote them",
    )
    if command.takes_config and {"-h", "--help"} & set(argv):
        parser.epilog = _fields(argv) or parser.epilog


def _fields(argv: list[str]) -> str:
    """Returns the help on the config's fields if a --config is given, else an empty string."""
    page = ""
    fields = []
    for arg, following in zip(argv, [*argv[1:], ""], strict=True):
        flag = arg
        if arg.startswith("--config") and "=" not in arg:
            flag = f"{arg}={following}"
        if flag.startswith("--config="):
            page = flag
        elif flag.startswith("--config."):
            fields.append(flag)
    if not page:
        return ""
    from flaxformer_lite.cli import list_fields

    return list_fields.describe(command_line.config([page, *fields]))


if __name__ == "__main__":
    start()
