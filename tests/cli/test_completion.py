"""The script for a shell completes what the parsers know."""

import subprocess

import pytest

from flaxformer_lite import pages
from flaxformer_lite.__main__ import main
from flaxformer_lite.cli.commands import COMMANDS

ASK = """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _flaxformer_lite; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (["gen"], ["generate"]),
        ([""], list(COMMANDS)),
        (["train", "--config", "=", "gpt2_t"], ["gpt2_tiny"]),
        (["train", "--config", "="], pages.names()),
        (["generate", "--dtype", "b"], ["bfloat16"]),
        (["generate", "--mod"], ["--model"]),
        (["data", "st"], ["stats"]),
        (["generate", "--all"], ["--allow_plugins"]),
    ],
)
def test_bash_completes(line, found, tmp_path, capsys):
    main(["completion", "bash"])
    (tmp_path / "ask.sh").write_text(capsys.readouterr().out + ASK)
    told = subprocess.run(
        ["bash", tmp_path / "ask.sh", "flaxformer_lite", *line],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(told.stdout.split()) == sorted(found) and not told.stderr


def test_zsh_reads_it_as_bash_does(capsys):
    main(["completion", "zsh"])
    assert capsys.readouterr().out.startswith("autoload -Uz compinit bashcompinit")
