"""Runs EleutherAI's lm-evaluation-harness on a model."""

import argparse
import os
import sys

from flaxformer_lite.cli.open_model import folder_of, print_warnings
from flaxformer_lite.config import ConfigError

# Our flags that are arguments of the harness's model.
OF_MODEL = ("dtype", "adapter", "allow_plugins")


def run(args: argparse.Namespace) -> None:
    """Runs the harness's own command, which prints its table."""
    try:
        from lm_eval.__main__ import cli_evaluate

        import flaxformer_lite.contrib.lm_eval.model  # noqa: F401  # registers the model
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"lm-eval: {error.name} is not installed; pip install 'flaxformer_lite[lm-eval]'."
        ) from None
    # torch computes nothing here, and beside jax transformers needs none for its tokenizers.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    before = sys.argv
    sys.argv = ["lm-eval", *harness_arguments(args)]
    try:
        with print_warnings():
            cli_evaluate()
    except (ValueError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"lm-eval: {error}") from error
    finally:
        sys.argv = before


def harness_arguments(args: argparse.Namespace) -> list[str]:
    """Returns the arguments of the harness's command `run`."""
    of_model = {"pretrained": str(folder_of(args.model))}
    for name in OF_MODEL:
        if getattr(args, name):
            of_model[name] = getattr(args, name)
    if args.length:
        of_model["max_length"] = args.length
    for name, value in of_model.items():
        if set(str(value)) & set(",="):
            flag = "model" if name == "pretrained" else name
            raise ConfigError(
                f"--{flag}={value}: the harness splits its"
                " arguments at commas and equal signs; use a path without them."
            )
    model_args = ",".join(f"{name}={value}" for name, value in of_model.items())
    arguments = ["run", "--model", "flaxformer_lite", "--model_args", model_args]
    arguments += ["--tasks", ",".join(args.tasks), "--batch_size", str(args.batch_size)]
    return arguments + args.more
