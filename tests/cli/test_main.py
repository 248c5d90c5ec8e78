"""The door: help at once, every mistake in one line."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from flaxformer_lite import __main__ as door
from flaxformer_lite.cli import command_line
from tests.cli import models

ROOT = Path(__file__).parents[2]


def program(*args, **options):
    command = [sys.executable, "-m", "flaxformer_lite", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return models.directory(tmp_path_factory.mktemp("gpt2"))


def test_help_is_quick_and_shows_examples():
    began = time.monotonic()
    done = program("--help")
    assert time.monotonic() - began < 3
    assert done.returncode == 0 and not done.stderr
    for name in door.COMMANDS:
        assert f"python -m flaxformer_lite {name} " in done.stdout


@pytest.mark.parametrize("name", door.COMMANDS)
def test_each_command_explains_itself_without_jax(name):
    code = f"import sys; from flaxformer_lite.__main__ import main; main([{name!r}, '--help'])"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and f"python -m flaxformer_lite {name} " in done.stdout.partition("examples:")[2]
    assert " jax\n" not in done.stderr and " numpy\n" not in done.stderr


def test_no_command_shows_the_help(capsys):
    door.main([])
    assert "examples:" in capsys.readouterr().out


def test_a_prompt_through_a_pipe_in_a_process_of_its_own(gpt2):
    done = program("generate", "--model", gpt2, "--prompt", "-", "--max_new_tokens", 4, input="zero one\n")
    assert done.returncode == 0 and not done.stderr and done.stdout.endswith("\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["polish"], "invalid choice: 'polish'"),
        (["generate", "--prompt", "x"], "the following arguments are required: --model"),
        (["generate", "--model", "nowhere", "--prompt", "x"], "nowhere: no such directory; models are read from disk"),
        (["generate", "--model", "GPT2", "--prompt", "x", "--top_p", "0.9"], "temperature=0 draws none"),
        (["generate", "--model", "GPT2", "--prompt", "x", "--max_new_tokens", "99"], "ask for at most"),
        (["generate", "--model", "GPT2", "--prompt", "x", "--temperature", "hot"], "invalid float value: 'hot'"),
        (["generate", "--model", "GPT2", "--prompt", "x", "--chat"], "this model has no chat template"),
        (["generate", "--model", "GPT2", "--prompt", "x", "--system", "y"], "add --chat"),
        (["generate", "--model", "GPT2", "--prompt", "x", "--prompt", "y", "--stream"], "one text at a time"),
        (
            ["generate", "--model", "GPT2", "--prompt", "x", "--stream", "--num_beams", "2", "--max_new_tokens", "4"],
            "may change what was written",
        ),
        (["convert", "GPT2", "GPT2"], "is there already and is not overwritten"),
        (["convert", "GPT2", "new", "--shard_size", "big"], "--shard_size=big: a size like 500MB or 2GB"),
        (["convert", "GPT2", "new", "--head", "masked_lm"], "head='masked_lm': no such head"),
        (["inspect", "EMPTY"], "no model.safetensors"),
        (["embed", "--model", "GPT2"], "no text: give --text TEXT"),
        (["embed", "--model", "GPT2", "--text", "x"], "family='gpt2': has no encoder"),
        (["embed", "--model", "GPT2", "--text", "x", "--out", "x.txt"], "must end in .npy"),
        (["embed", "--model", "GPT2", "--file", "nowhere.txt"], "cannot be read as UTF-8 text"),
        (["fill-mask", "--model", "GPT2", "a [MASK]"], "head='masked_lm': no such head"),
        (["fill-mask", "--model", "GPT2", "a [MASK]", "--top_k", "0"], "--top_k=0: at least 1"),
    ],
)
def test_mistakes_are_one_line(args, message, gpt2, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    with pytest.raises(SystemExit) as ended:
        door.main([{"GPT2": str(gpt2), "EMPTY": str(tmp_path / "EMPTY")}.get(arg, arg) for arg in args])
    said = capsys.readouterr()
    assert ended.value.code == command_line.BAD_INPUT
    assert said.err.startswith("error: ") and message in said.err and said.err.count("\n") == 1
    assert not said.out and sorted(p.name for p in tmp_path.iterdir()) == ["EMPTY"]
