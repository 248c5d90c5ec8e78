"""The door: help at once, every mistake in one line."""

import contextlib
import io
import shlex
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
from tests.cli.test_home import actions

ROOT = Path(__file__).parents[2]


def program(*args, **options):
    command = [sys.executable, "-m", "flaxformer_lite", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return models.directory(tmp_path_factory.mktemp("gpt2"))


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


@pytest.mark.parametrize("args", [[], ["--help"]])
def test_without_a_command_each_is_shown(args, capsys):
    with contextlib.suppress(SystemExit):
        door.main(args)
    said = capsys.readouterr()
    everyday, others = said.out.split("more:")
    assert all(f"\n  {name} " in everyday for name in door.EVERYDAY)
    assert all(f"\n  {name} " in others for name in door.COMMANDS.keys() - door.EVERYDAY.keys())
    assert not said.err


def test_versions(capsys):
    versions = f"{flaxformer_lite.__version__} (jax {jax.__version__}, flax {flax.__version__})"
    for command in (["--version"], ["train", "--version"]):
        door.main(command)
        assert capsys.readouterr().out == f"flaxformer_lite {versions}\n"


def test_flags_are_declared_with_underscores():
    """A hyphen on the command line becomes one before flags are looked up."""
    flags = [(name, flag) for name, action in actions() for flag in action.option_strings]
    assert {name for name, _ in flags} == set(door.COMMANDS)
    assert not [flag for _, flag in flags if "-" in flag.removeprefix("--")[1:]]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # of stdin, by the locale
@pytest.mark.parametrize("args", ["generate --prompt -", "embed --file=-"])
def test_a_pipe_that_is_no_text_is_one_line(args, errors, gpt2, capsys, monkeypatch):
    piped = io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", piped)
    with pytest.raises(SystemExit) as ended:
        door.main([*args.split(), "--model", str(gpt2)])
    said = capsys.readouterr().err
    assert ended.value.code == command_line.BAD_INPUT and said.count("\n") == 1
    assert said.startswith(f"error: {args.partition(' ')[2]}: cannot be read as UTF-8 text")


@pytest.mark.nightly
def test_a_prompt_through_a_pipe_in_a_process_of_its_own(gpt2):
    done = program(
        "generate", "--model", gpt2, "--prompt", "-", "--max_new_tokens", 4, input="zero one\n"
    )
    assert done.returncode == 0 and not done.stderr and done.stdout.endswith("\n")


WRITE = "generate --model GPT2 --prompt x"
EMBED = "embed --model GPT2"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("chat", "chat: no such command; write generate --model DIR --chat"),
        ("serve", "docs/export.md"),
        ("polish", "polish: no such command; there are train, data"),
        ("genrate --model x", "genrate: no such command; did you mean 'generate'?"),
        ("--config=gpt2_tiny", "a command is missing: train, data"),
        ("generate --modle x", "--modle: no such flag; did you mean '--model'?"),
        ("generate --prompt x", "the following arguments are required: --model"),
        ("generate --model nowhere --prompt x", "nowhere: no such directory"),
        ("generate --model gs:/bucket/gpt2 --prompt x", "has a bucket behind two slashes"),
        ("generate --model GPT2 --prompt '\udcff'", "--prompt: '\\udcff' is not UTF-8"),
        (f"{WRITE} --max-new-token 9", "did you mean '--max_new_tokens'?"),
        (f"{WRITE} --max_new_tokens 99", "ask for at most"),
        (f"{WRITE} --top_p 0.9", "temperature=0 does not sample"),
        (f"{WRITE} --temperature hot", "invalid float value: 'hot'"),
        (f"{WRITE} --chat", "this model has no chat template"),
        (f"{WRITE} --system y", "add --chat"),
        (f"{WRITE} --prompt y --stream", "one text at a time"),
        (f"{WRITE} --stream --num_beams 2 --max_new_tokens 4", "may change tokens already written"),
        ("convert --model x", "--model: no such flag; SRC DST are given without a flag"),
        ("convert GPT2 GPT2", "exists and is not overwritten"),
        ("convert GPT2 new --head masked_lm", "head='masked_lm': no such head"),
        ("convert GPT2 s3:/bucket/gpt2", "has a bucket behind two slashes, s3://BUCKET/NAME"),
        ("inspect EMPTY", "no model.safetensors"),
        (EMBED, "no text: pass --text TEXT"),
        (f"{EMBED} --text x --output x.txt", "must end in .npy"),
        (f"{EMBED} --text x --output no/x.npy", "no/x.npy: its folder does not exist"),
        (f"{EMBED} --file nowhere.txt", "cannot be read as UTF-8 text"),
        ("fill-mask", "fill-mask: no such command; write generate --model DIR --prompt"),
        (f"{WRITE} --min-p 0.1", "--min_p: no such flag; write --set min_p=X"),
        (f"{WRITE} --max-length 9", "--max_length: no such flag; write --max_new_tokens N"),
        (f"{EMBED} --dtypo float32", "--dtypo: no such flag; did you mean '--dtype'?"),
        ("lm-eval --limit 9", "--limit: no such flag; write it after --"),
        ("data", "the following arguments are required: {stats,show,tokenize}"),
        ("inspect --json", "--json: no such flag; SRC is given without a flag"),
        (f"{WRITE} --set min_q=0.1", "--set min_q=0.1: must be NAME=VALUE of a setting; did you"),
        ("verify --config=gpt2_tiny --devices=100000", "--devices: 100000: must be at most 512"),
    ],
)
def test_mistakes_are_one_line(line, message, gpt2, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    args = [str(gpt2) if arg == "GPT2" else arg for arg in shlex.split(line)]
    with pytest.raises(SystemExit) as ended:
        door.main(args)
    said = capsys.readouterr()
    assert ended.value.code == command_line.BAD_INPUT
    assert said.err.startswith("error: ") and message in said.err and said.err.count("\n") == 1
    assert not said.out and sorted(p.name for p in tmp_path.iterdir()) == ["EMPTY"]


@pytest.mark.parametrize("line", ["evaluate --limit 9", "embed --max_tokens 9"])
def test_no_command_is_told_to_write_what_another_has(line, capsys):
    with pytest.raises(SystemExit):
        door.main(line.split())
    assert "no such flag; " in (said := capsys.readouterr().err) and "write" not in said
