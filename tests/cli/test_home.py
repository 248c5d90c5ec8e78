"""`~` in every path of a command line, and machines on which it stands for nothing."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite import __main__ as door, model_folder, open_model, pages, private_names
from flaxformer_lite.checkpoints import mirror
from flaxformer_lite.cli.commands import COMMANDS
from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import find_files
from flaxformer_lite.runtime import environment
from flaxformer_lite.storage import content_cache, fetch
from flaxformer_lite.text import tokenizer
from tests.training import tiny_runs

ROOT = Path(__file__).parents[2]
SUFFIXES = ("", ".jsonl", ".npy", ".html", ".onnx")


def actions():
    """Yields (command, argument) of all command lines."""
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser()
        command.add_arguments(parser, parser)
        for action in private_names.flags(parser):
            yield name, action


def parsed(value):
    """Returns (command, argument, parsed value or error) of each argument that takes a path."""
    found = []
    for name, action in actions():
        if action.type in (None, int, float) or action.type.__name__ == "text":
            continue
        for suffix in SUFFIXES:
            try:
                found.append((name, action.dest, action.type(f"{value}{suffix}")))
            except argparse.ArgumentTypeError as error:
                if "no such home folder" in str(error):
                    found.append((name, action.dest, error))
    return found


def test_commands_have_few_flags_and_few_names_for_them():
    flags = [action for _, action in actions() if action.dest != "help"]
    names = [(action.option_strings or [action.dest])[0] for action in flags]
    assert len(names) <= 119 and len(set(names)) <= 70


def test_each_path_begins_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    found = parsed("~/m")
    arguments = {(name, argument) for name, argument, _ in found}
    assert arguments >= {("train", "workdir"), ("convert", "dst"), ("steps", "output")}
    assert len(arguments) > 30
    for name, argument, value in found:
        assert str(value).startswith(f"{tmp_path}/m"), (name, argument, value)


def test_each_path_of_somebody_who_is_not_there_is_refused_in_a_sentence():
    of_a_person = {(name, argument) for name, argument, _ in parsed("/tmp/m")}
    refused = parsed("~no_such_user/m")
    assert {(name, argument) for name, argument, _ in refused} == of_a_person
    for name, argument, error in refused:
        assert "~no_such_user/m" in str(error) and "set HOME" in str(error), (name, argument)


def test_a_run_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    flaxformer_lite.run(tiny_runs.config(tmp_path, train={"steps": 1}), "~/run")
    assert Path("run/config.json").is_file() and not Path("~").exists()


READERS = {
    "place_of": mirror.place_of,
    "model on disk": model_folder.on_disk,
    "load_pretrained": open_model.load_pretrained,
    "file on disk": fetch.on_disk,
    "local": content_cache.local,
    "locate": pages.locate,
    "load": tokenizer.load,
    "roots": lambda path: find_files._roots(path, "data.path", "train"),
}


@pytest.mark.parametrize("name", READERS)
def test_functions_too_say_that_there_is_no_such_folder(name):
    with pytest.raises(ConfigError, match=r"^~no_such_user/m: there is no such home folder; set"):
        READERS[name]("~no_such_user/m")


# A process without HOME, of a user who is in no list.
HOMELESS = """
import os, pwd, sys

def find(*_):
    raise KeyError("no such user")

pwd.getpwuid = find
pwd.getpwnam = find
del os.environ["HOME"]
os.environ["FLAXFORMER_LITE_BEGUN"] = "again"
from flaxformer_lite.__main__ import start
start()
"""


@pytest.mark.parametrize(
    ("path", "message"),
    [("nothing", "nothing: no such directory"), ("~/m", "~/m: there is no such home folder")],
)
def test_without_any_home(path, message, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HOMELESS, "inspect", path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_without_any_home_programs_are_not_kept(monkeypatch):
    monkeypatch.setenv("FLAXFORMER_LITE_CACHE", "~no_such_user/cache")
    assert environment.private_folder() is None


def test_only_one_function_expands_paths():
    package = Path(door.__file__).parent
    raising = [path for path in package.rglob("*.py") if ".expanduser()" in path.read_text()]
    assert raising == [package / "files/home.py"]
