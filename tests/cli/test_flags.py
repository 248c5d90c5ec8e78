"""Flags of all commands: both spellings, with underscores and with hyphens, are read."""

import argparse

import pytest

from flaxformer_lite import private_names
from flaxformer_lite.cli.commands import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_are_declared_with_underscores(name):
    """A hyphen on the command line becomes one before flags are looked up."""
    parser = argparse.ArgumentParser()
    COMMANDS[name].add_arguments(parser)
    flags = [flag for action in private_names.flags(parser) for flag in action.option_strings]
    assert flags
    assert not [flag for flag in flags if "-" in flag.removeprefix("--")[1:]]
