import builtins
import io
import logging
import sys
import types

import pytest
from rich.console import Console

from flaxformer_lite.objectives.base import LOSS
from flaxformer_lite.objectives.text.masked_lm import MaskedLm
from flaxformer_lite.objectives.text.text_objective import ACCURACY
from flaxformer_lite.runs.report.terminal import Terminal
from flaxformer_lite.runtime import progress

RECORD = {"step": 20, "split": "train", "loss": 3.21, "grad_norm": 0.5, "learning_rate": 1e-3}
RECORD |= {"tokens_per_second": 12345.6, "step_seconds": 50.0}
HELD = {"step": 20, "split": "eval", "loss": 3.5}


def terminal(is_terminal, kind="xterm"):
    out = io.StringIO()
    kinds = {"force_terminal": is_terminal, "_environ": {"TERM": kind}}
    console = Console(file=out, width=100, highlight=False, soft_wrap=True, **kinds)
    return Terminal(100, (LOSS, ACCURACY), console=console), out


def test_plain_lines_where_there_is_no_terminal():
    plain, out = terminal(False)
    with plain.training(0):
        plain.advance(20)
        plain.train_record({**RECORD, "mfu": 0.41})
        plain.eval_record({**HELD, "accuracy": 0.25})
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("step 20/100  loss 3.210  12,346 tokens/s  eta 1:06:40  41% of peak")
    assert lines[0].endswith("gradient 0.50  rate 1.0e-03")
    assert lines[1] == "step 20/100  held out: loss 3.500  accuracy 25.0%"


@pytest.mark.parametrize(
    ("is_terminal", "copied", "count"), [(True, False, 3), (True, True, 1), (False, False, 1)]
)
def test_long_values_go_on_below_themselves_unless_they_are_to_be_copied(
    is_terminal, copied, count
):
    words = " ".join(["word"] * 40)
    one, out = terminal(is_terminal)
    one.rows("result", [("loss", "3"), ("a longer name", words)], copied=copied)
    lines = out.getvalue().splitlines()[3:]
    assert len(lines) == count and " ".join(" ".join(lines).split()) == f"a longer name {words}"
    assert count == 1 or max(map(len, lines)) <= 100
    assert all(line.startswith(" " * 17 + "word") for line in lines[1:])


def test_plain_lines_on_a_terminal_that_cannot_move_its_cursor():
    plain, out = terminal(True, "dumb")
    with plain.training(0):
        plain.advance(20)
        plain.train_record(RECORD)
    said = out.getvalue()
    assert said.startswith("step 20/100  loss 3.210  ") and said.count("\n") == 1


def test_one_loss_has_one_name_and_meaning():
    """BERT's loss of masked tokens alone, and not with that of pairs, wherever a run says
    `loss`."""
    out = io.StringIO()
    metrics = MaskedLm(pairs="next_sentence").shown
    shown = Terminal(100, metrics, console=Console(file=out, soft_wrap=True))
    losses = {"loss": 7.971, "nll": 7.259}
    shown.train_record({**RECORD, **losses})
    others = {"accuracy": 0.1, "perplexity": 9.0, "next_sentence_accuracy": 0.5}
    shown.eval_record({**HELD, **losses, **others})
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("step 20/100  loss 7.259  ")
    assert lines[1] == "step 20/100  held out: loss 7.259  accuracy 10.0%  pair accuracy 50.0%"


def test_a_bar_on_a_terminal_says_compiling_until_the_first_step_is_done():
    live, out = terminal(True)
    with live.training(0):
        progress, task = live._bar
        assert progress.tasks[task].fields["text"] == "compiling"
        live.advance(1)
        assert progress.tasks[task].fields["text"] == ""
        live.advance(20)
        live.train_record(RECORD)
        live.eval_record(HELD)
        live.advance(21)
        assert progress.tasks[task].fields["text"].startswith("loss 3.210")
    said = out.getvalue()
    assert all(part in said for part in ("20/100", "12,346 tokens/s", "eta"))
    assert "gradient" not in said


@pytest.fixture
def notebook(monkeypatch):
    """The outputs that rich would make where it finds a notebook."""
    outputs = []

    class ZMQInteractiveShell:
        pass

    shown = types.ModuleType("IPython.display")
    shown.display = outputs.append
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter sets it
    assert Console().is_jupyter
    return outputs


def test_a_notebook_has_one_output_and_a_line_that_is_written_over(notebook, capsys):
    live = Terminal(100, (LOSS, ACCURACY))
    live.rows("flaxformer_lite", [("model", "gpt2")])
    with live.training(0), progress.count_progress("rows", 10) as advance:
        advance(10)
        for step in (20, 40):
            live.advance(step)
            live.train_record({**RECORD, "step": step, "loss": 60.0 / step})
        live.eval_record({**HELD, "step": 40})
        live.train_record({**RECORD, "step": 60})
    said = capsys.readouterr().out
    assert not notebook, "only plain text"
    seen = [line.rstrip("\n").split("\r")[-1].rstrip() for line in said.split("\n")[3:]]
    forty = [["step 40/100", "loss 1.500"], ["step 40/100", "held out: loss 3.500"]]
    due = [*forty, ["step 60/100", "loss 3.210"], [""]]
    assert [line.split("  ")[:2] for line in seen] == due


def test_rows_are_aligned_and_brackets_are_text():
    plain, out = terminal(False)
    plain.rows("result", [("loss", "1.0"), ("bits per byte", "[bold]2.0")])
    assert out.getvalue() == "\nresult\n  loss           1.0\n  bits per byte  [bold]2.0\n"


def test_rows_to_be_copied_keep_their_lines_and_tabs():
    for is_terminal in (False, True):
        shown, out = terminal(is_terminal)
        shown.rows("written", [("answer", "if x:\n\treturn  1")], copied=True)
        assert "answer  if x:\n" in out.getvalue()
    plain, out = terminal(False)
    plain.rows("next", [("predict", "predict --data 'a\n b.csv'")], copied=True)
    assert "--data 'a\n b.csv'\n" in out.getvalue()


def test_a_sample_keeps_its_brackets_and_lines():
    plain, out = terminal(False)
    goes_on = "x[0]):\n    return [red]x"
    plain.sample([("a held-out text begins", "def f("), ("the model goes on", goes_on)])
    said = ["def f(", "--- the model goes on", "x[0]):", "    return [red]x"]
    assert out.getvalue().splitlines()[3:] == [f"  {line}" for line in said]


def test_what_the_package_logs_while_training_is_noted():
    plain, out = terminal(False)
    log = logging.getLogger("flaxformer_lite")
    with plain.listening():
        log.info("attention: dense")
        assert not out.getvalue(), "the banner comes first"
        with plain.training(0):
            assert out.getvalue() == "attention: dense\n"
    log.info("nobody listens")
    assert out.getvalue() == "attention: dense\n" and not log.handlers
