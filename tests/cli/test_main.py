"""The door: help at once, every mistake in one line."""

import io
import subprocess
import sys
from pathlib import Path

import flax
import jax
import pytest

import flaxformer_lite
from flaxformer_lite import __main__ as door
from flaxformer_lite.cli import command_line
from flaxformer_lite.runtime import invocation
from tests.cli import models

ROOT = Path(__file__).parents[2]


def program(*args, **options):
    command = [sys.executable, "-m", "flaxformer_lite", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return models.directory(tmp_path_factory.mktemp("gpt2"))


def test_help_shows_examples():
    done = program("--help")
    assert done.returncode == 0 and not done.stderr
    for name in door.COMMANDS:
        assert f"python -m flaxformer_lite {name} " in done.stdout


EXPLAIN = """
import sys
from flaxformer_lite.__main__ import COMMANDS, main
for name in COMMANDS:
    print("command", name)
    try:
        main([name, "--help"])
    except SystemExit as end:
        assert not end.code, name
    assert not {"jax", "numpy"} & set(sys.modules), name
"""


def test_each_command_explains_itself_without_jax():
    done = subprocess.run([sys.executable, "-c", EXPLAIN], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts = ("\n" + done.stdout).split("\ncommand ")[1:]
    assert len(texts) == len(door.COMMANDS)
    for name, text in zip(door.COMMANDS, texts, strict=True):
        examples = text.partition("examples:")[2]
        assert text.startswith(f"{name}\n") and f"python -m flaxformer_lite {name} " in examples


@pytest.mark.parametrize("columns", ["80", "100"])
def test_help_fits_the_terminal_but_for_examples(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(invocation, "program", lambda command: f"flaxformer_lite {command}")
    with pytest.raises(SystemExit):
        door.main(["plan", "--help"])
    before = capsys.readouterr().out.partition("examples:\n")[0]
    assert "the plan is analytic" in " ".join(before.split())
    assert max(map(len, before.splitlines())) <= int(columns)


def test_no_command_shows_the_help(capsys):
    door.main([])
    assert "examples:" in capsys.readouterr().out


def test_versions(capsys):
    door.main(["--version"])
    said = capsys.readouterr().out
    door.main(["train", "--version"])
    assert (
        said == f"flaxformer_lite {flaxformer_lite.__version__} (jax {jax.__version__}, flax"
        f" {flax.__version__})\n"
    )
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # of stdin, by the locale
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["generate", "--prompt", "-"], "--prompt -: cannot be read as UTF-8 text"),
        (["embed", "--file", "-"], "--file=-: cannot be read as UTF-8 text"),
    ],
)
def test_a_pipe_that_is_no_text_is_one_line(args, message, errors, gpt2, capsys, monkeypatch):
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8", errors=errors)
    )
    with pytest.raises(SystemExit) as ended:
        door.main([*args, "--model", str(gpt2)])
    said = capsys.readouterr().err
    assert ended.value.code == command_line.BAD_INPUT
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1


@pytest.mark.nightly
def test_a_prompt_through_a_pipe_in_a_process_of_its_own(gpt2):
    done = program(
        "generate", "--model", gpt2, "--prompt", "-", "--max_new_tokens", 4, input="zero one\n"
    )
    assert done.returncode == 0 and not done.stderr and done.stdout.endswith("\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["chat"], "chat: no such command; write generate --model DIR --chat"),
        (["serve"], "docs/serving.md"),
        (["polish"], "polish: no such command; there are train, generate"),
        (["genrate", "--model", "x"], "genrate: no such command; did you mean 'generate'?"),
        (["generate", "--modle", "x"], "--modle: no such flag; did you mean '--model'?"),
        (["convert", "--model", "x"], "--model: no such flag; SRC DST are given without a flag"),
        (["generate", "--prompt", "x"], "the following arguments are required: --model"),
        (
            ["generate", "--model", "nowhere", "--prompt", "x"],
            "nowhere: no such directory",
        ),
        (
            ["generate", "--model", "GPT2", "--prompt", "x", "--top_p", "0.9"],
            "temperature=0 does not sample",
        ),
        (
            ["generate", "--model", "GPT2", "--prompt", "x", "--max_new_tokens", "99"],
            "ask for at most",
        ),
        (
            ["generate", "--model", "GPT2", "--prompt", "x", "--temperature", "hot"],
            "invalid float value: 'hot'",
        ),
        (
            ["generate", "--model", "GPT2", "--prompt", "x", "--chat"],
            "this model has no chat template",
        ),
        (["generate", "--model", "GPT2", "--prompt", "x", "--system", "y"], "add --chat"),
        (
            ["generate", "--model", "GPT2", "--prompt", "x", "--prompt", "y", "--stream"],
            "one text at a time",
        ),
        (
            [
                "generate",
                "--model",
                "GPT2",
                "--prompt",
                "x",
                "--stream",
                "--num_beams",
                "2",
                "--max_new_tokens",
                "4",
            ],
            "may change tokens already written",
        ),
        (["convert", "GPT2", "GPT2"], "exists and is not overwritten"),
        (
            ["convert", "GPT2", "new", "--shard_size", "big"],
            "--shard_size=big: must be a size like 500MB or 2GB",
        ),
        (["convert", "GPT2", "new", "--head", "masked_lm"], "head='masked_lm': no such head"),
        (["inspect", "EMPTY"], "no model.safetensors"),
        (["embed", "--model", "GPT2"], "no text: pass --text TEXT"),
        (["embed", "--model", "GPT2", "--text", "x", "--out", "x.txt"], "must end in .npy"),
        (["embed", "--model", "GPT2", "--file", "nowhere.txt"], "cannot be read as UTF-8 text"),
        (["fill-mask", "--model", "GPT2", "a [MASK]"], "head='masked_lm': no such head"),
        (
            ["embed", "--model", "GPT2", "--text", "x", "--out", "no/x.npy"],
            "no/x.npy: its folder does not exist",
        ),
        (
            ["predict", "--model", "GPT2", "--data", "x.csv", "--output", "no/x.csv"],
            "no/x.csv: its folder does not exist",
        ),
        (
            ["fill-mask", "--model", "GPT2", "a [MASK]", "--top_k", "0"],
            "--top_k: 0: must be at least 1",
        ),
        (
            ["fill_mask", "--model", "GPT2", "a [MASK]", "--top-k", "0"],
            "--top_k: 0: must be at least 1",
        ),
        (["--config=gpt2_tiny"], "a command is missing: train, generate"),
        (
            ["generate", "--model", "GPT2", "--prompt", "x", "--max-new-token", "9"],
            "did you mean '--max_new_tokens'?",
        ),
        (
            ["generate", "--model", "GPT2", "--prompt", "x", "--max-new-tokens", "1000000000000"],
            "at most 2147483647",
        ),
        (
            ["generate", "--model", "GPT2", "--prompt", "x", "--temperature", "1e-45"],
            "temperature=1e-45: must be at least 1e-30",
        ),
        (
            ["generate", "--model", "GPT2", "--prompt", "\udcff"],
            "argument --prompt: '\\udcff' is not UTF-8",
        ),
        (
            ["generate", "--model", "gs:/bucket/gpt2", "--prompt", "x"],
            "has a bucket behind two slashes",
        ),
        (
            ["convert", "GPT2", "s3:/bucket/gpt2"],
            "an address has a bucket behind two slashes, s3://BUCKET/NAME",
        ),
        (
            ["verify", "--config=gpt2_tiny", "--devices=0"],
            "argument --devices: 0: must be at least 1",
        ),
        (
            ["verify", "--config=gpt2_tiny", "--devices=100000"],
            "argument --devices: 100000: must be at most 512",
        ),
    ],
)
def test_mistakes_are_one_line(args, message, gpt2, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    with pytest.raises(SystemExit) as ended:
        door.main(
            [{"GPT2": str(gpt2), "EMPTY": str(tmp_path / "EMPTY")}.get(arg, arg) for arg in args]
        )
    said = capsys.readouterr()
    assert ended.value.code == command_line.BAD_INPUT
    assert said.err.startswith("error: ") and message in said.err and said.err.count("\n") == 1
    assert not said.out and sorted(p.name for p in tmp_path.iterdir()) == ["EMPTY"]
