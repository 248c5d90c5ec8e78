"""Reads the experiment that a command's --config names."""

import argparse

from flaxformer_lite.cli import command_line
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runtime import invocation


def read_page(args: argparse.Namespace) -> ExperimentConfig:
    """Reads the page and the fields of a command line; prints one line and exits on an error."""
    return read_experiment(
        command_line.config(args.overrides),
        given=invocation.fields_given(args.overrides),
        allow_plugins=args.allow_plugins,
    )
