"""Flags of all commands: both spellings, with underscores and with hyphens, are read."""

import argparse
import re

import pytest

from flaxformer_lite.cli.commands import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_are_declared_with_underscores(name):
    """A hyphen on the command line becomes one before flags are looked up."""
    parser = argparse.ArgumentParser()
    COMMANDS[name].add_arguments(parser)
    lines = [line for line in parser.format_help().splitlines() if line.startswith("  -")]
    flags = re.findall(r"--[\w-]+", "\n".join(lines))
    assert flags
    assert not [flag for flag in flags if "-" in flag.removeprefix("--")[1:]]
