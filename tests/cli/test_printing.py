"""Untrusted text reaches terminals and spreadsheets as plain text."""

import json
import types

import numpy as np
import pytest
from scipy.sparse import csr_array

from flaxformer_lite.__main__ import main
from flaxformer_lite.cli import command_line, embed, generate, open_model, tables
from flaxformer_lite.cli.predict import write_rows
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError, TrainConfig
from flaxformer_lite.config.rules import is_place
from flaxformer_lite.files.read import escape_controls
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.runs.report.terminal import Terminal

ESCAPE = "\x1b]0;title\x07 \u202e"


def test_control_characters_are_escaped_and_other_text_is_kept(capsys):
    assert escape_controls(ESCAPE) == "\\x1b]0;title\\x07 \\u202e"
    plain = "naïve\u00a0日本 🙂\n\t"
    assert escape_controls(plain) == plain
    print_table([ESCAPE], [[ESCAPE]], right=())
    terminal = Terminal(1, CausalLm.shown)
    terminal.rows("labels", [("classes", ESCAPE)])
    terminal.sample([("a", ESCAPE)])
    terminal.note(ESCAPE)
    open_model.print_notice(ESCAPE)
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert "\x1b" not in said and "\x07" not in said and said.count("\\x1b]0;title") == 6


@pytest.mark.parametrize("address", ["s3://KEY:SECRET@b/x", "gs://b/x?token=SECRET"])
def test_secrets_of_addresses_are_refused_and_not_printed(address, capsys):
    with pytest.raises(ConfigError, match="must hold no keys or tokens") as error:
        TrainConfig(init_from=address)
    assert "SECRET" not in str(error.value)
    with pytest.raises(SystemExit):
        main(["inspect", address])
    said = capsys.readouterr().err
    assert "must hold no keys" in said and "SECRET" not in said
    assert not is_place("gs://b/part-?.txt") and not is_place("s3://b/a@b")


def test_formulas_are_reported_and_written_as_they_are(tmp_path, capsys):
    rows = [{"text": "=HYPERLINK(1)", "score": -0.5, "number": "-1"}, {"text": "@a"}]
    write_rows(tmp_path / "t.csv", rows)
    assert "2 cells begin like a formula" in capsys.readouterr().err
    assert (tmp_path / "t.csv").read_text().splitlines()[1].startswith("=HYPERLINK")
    write_rows(tmp_path / "t.jsonl", rows)
    lines = (tmp_path / "t.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == rows[0]
    assert not capsys.readouterr().err


def test_a_table_of_many_rows_is_not_laid_out_by_rich(monkeypatch, capsys):
    rows = [[f"n{number:05d}x", "日本", "7"] for number in range(tables.MAX_WRAPPED_ROWS + 1)]
    print_table(["name", "text", "number"], rows[:-1], right=[2])
    due = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    monkeypatch.setattr(tables, "Table", None)  # a third of a millisecond a row
    print_table(["name", "text", "number"], rows, right=[2])
    assert capsys.readouterr().out.splitlines()[:-1] == due


def test_an_error_of_another_parser_hides_keys(capsys):
    with pytest.raises(SystemExit):
        command_line.fail("steps=s3://KEY:HIDDEN@b/x: must be a whole number.", 2)
    assert capsys.readouterr().err == "error: steps=s3://***b/x: must be a whole number.\n"


ESCAPES = "a\x1b[2J\x1b]0;title\x07b\r\u202ec\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_texts_of_models_are_escaped_on_terminals_alone(is_terminal, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    result = types.SimpleNamespace(sequences=np.ones((1, 2), int), lengths=np.full(1, 2))
    monkeypatch.setattr(generate, "generate", lambda *_, **__: result)
    monkeypatch.setattr(generate, "stream", lambda *_, **__: iter(np.ones((3, 1, 1), int)))
    words = {"decode": lambda ids: ESCAPES * len(ids), "token": lambda i: ESCAPES}
    tokenizer = types.SimpleNamespace(**words)
    opened = types.SimpleNamespace(model=None, params=None, tokenizer=tokenizer)
    generate._print(opened, [[1]], {})
    generate._stream(opened, [[1]], {})
    embed._print_tokens([ESCAPES], csr_array(np.ones((1, 2))), tokenizer)
    said = capsys.readouterr().out
    assert ("\x1b" in said) != is_terminal and ("\u202e" in said) != is_terminal
    assert (r"\x1b[2J" in said) == is_terminal and "\n" in said
