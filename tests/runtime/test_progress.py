import io

from rich.console import Console

from flaxformer_lite.runtime import progress


def test_one_line_where_there_is_no_terminal(capsys):
    with progress.read_progress("tokenizing", 12_300_000) as advance:
        advance(100)
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "tokenizing: 12.3 MB\n")

    with progress.working("extracting"):
        pass
    assert capsys.readouterr().err == "extracting\n"


def test_a_line_a_minute_where_there_is_no_terminal(capsys, monkeypatch):
    now = iter([0.0, 30, 61, 90, 125])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with progress.read_progress("tokenizing", 1_000_000_000) as advance:
        for _ in range(4):
            advance(61_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "tokenizing: 1000.0 MB",
        "tokenizing: 122.0 MB (12%), 2.0 MB/s",
        "tokenizing: 244.0 MB (24%), 2.0 MB/s",
    ]


def test_a_bar_and_a_spinner_on_a_terminal(monkeypatch):
    screen = io.StringIO()
    shown = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(progress, "Console", lambda **_: shown)
    with progress.read_progress("tokenizing", 1000) as advance:
        advance(1000)
    with progress.working("extracting"):
        pass
    assert "tokenizing" in screen.getvalue()
    assert "extracting" in screen.getvalue()
