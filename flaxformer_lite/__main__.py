"""Published weights, trained models and plans of runs, from the command line."""

import argparse
import importlib
import os
import sys
from typing import NoReturn

from flaxformer_lite.cli import command_line
from flaxformer_lite.runtime import environment

COMMANDS = {
    "generate": "write text with a model",
    "convert": "write any checkpoint as published weights",
    "inspect": "say what a directory holds",
    "embed": "make vectors of sentences and compare them",
    "fill-mask": "guess the hidden word of a sentence",
    "plan": "say what a training run needs of machines that are not there",
    "verify-mesh": "compare a step on a mesh with the same step on one device",
}
EXAMPLES = """examples:
  python -m flaxformer_lite generate --model path/to/gpt2 --prompt "Once upon a time" --temperature 0.8 --stream
  python -m flaxformer_lite convert runs/gpt2 published/gpt2
  python -m flaxformer_lite inspect path/to/bert
  python -m flaxformer_lite embed --model path/to/minilm --text "A cat sleeps." --text "A kitten naps."
  python -m flaxformer_lite fill-mask --model path/to/bert "The capital of [MASK] is Paris."
  python -m flaxformer_lite plan --config=configs/llama_7b.py --topology=v5e:16x16
  python -m flaxformer_lite verify-mesh --config=configs/llama_tiny.py --config.mesh.fsdp=2 --config.mesh.tensor=2

A model is a directory with config.json, model.safetensors and a tokenizer, or the --workdir of train.py.
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where the help is."""

    def error(self, message: str) -> NoReturn:
        command_line.fail(f"{message}; {self.prog} --help shows examples.", command_line.BAD_INPUT)


def main(argv: list[str]) -> None:
    """Runs one command. Exits with 2 on bad input, 1 on a failure; a bug keeps its traceback."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser("python -m flaxformer_lite", description=__doc__, epilog=EXAMPLES, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, what in COMMANDS.items():
        add = commands.add_parser(name, help=what, formatter_class=formatter)
        if name in argv[:1]:
            command = importlib.import_module(f"flaxformer_lite.cli.{name.replace('-', '_')}")
            add.description, add.epilog = command.__doc__, command.EXAMPLES
            command.add_arguments(add)
    if not argv:
        parser.print_help()
        return
    args, overrides = parser.parse_known_args(argv)
    if overrides and not getattr(command, "TAKES_CONFIG", False):
        parser.error(f"unrecognized arguments: {' '.join(overrides)}")
    args.overrides = overrides  # --config=FILE and --config.FIELD=VALUE, which absl reads
    _run(command.run, args)


def _run(run, args: argparse.Namespace) -> None:
    try:
        run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        command_line.fail("interrupted.", 130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        kind = _exit_code(error)
        if kind is None:
            raise
        command_line.fail(str(error).splitlines()[0] if kind == command_line.FAILED else error, kind)


def _exit_code(error: Exception) -> int | None:
    """2 for what the user can put right, 1 for what failed, None for a bug."""
    import jax  # after the command has failed, no longer matters how long this takes

    from flaxformer_lite.checkpoints.manager import CheckpointError
    from flaxformer_lite.config import ConfigError
    from flaxformer_lite.pretrained.safetensors import WeightsError

    if isinstance(error, (ConfigError, WeightsError)):
        return command_line.BAD_INPUT
    out_of_memory = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    return command_line.FAILED if out_of_memory or isinstance(error, (CheckpointError, OSError)) else None


if __name__ == "__main__":
    environment.configure()
    main(sys.argv[1:])
