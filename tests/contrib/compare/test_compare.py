"""The table, the chart and the differences of runs, through the command."""

import dataclasses
import json
import re

import numpy as np
import pytest

from flaxformer_lite import __main__ as door
from flaxformer_lite.checkpoints.run_inputs import write_inputs
from flaxformer_lite.models import bert
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.text import tokenizer
from tests.runs.test_chart import drawn
from tests.training import tiny_runs

CURVES = {"small": (5.0, 4.0, 4.5), "wide": (5.0, 3.5, 3.0)}


def write(folder, cfg, values, name="nll", every=10, **others):
    """A workdir as a run leaves it, with these held-out values."""
    folder.mkdir(parents=True)
    write_inputs(folder, cfg, tokenizer.Bytes())
    records = []
    for index, value in enumerate(values):
        step = every * index
        timed = {"tokens_per_second": 100.0 + index, "step_seconds": 256 / (100.0 + index)}
        if step:
            records.append({"step": step, "split": "train", "loss": value, **timed})
        records.append({"step": step, "split": "eval", name: value, **others})
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def cfg(tmp_path):
    return tiny_runs.config(tmp_path, train={"steps": 20})


def wider(cfg, width=32):
    model = dataclasses.replace(cfg.model, d_model=width, vocab_size=300)
    return dataclasses.replace(cfg, model=model)


def classifier(cfg, **options):
    """A run of another objective, whose values are accuracies."""
    sizes = tiny_runs.SIZES | {"vocab_size": 300, "encoder_layers": 1}
    model = bert.config("tiny", head="sequence_classification", **sizes)
    return dataclasses.replace(cfg, model=model, objective=Classification(**options))


@pytest.fixture
def runs(cfg, tmp_path):
    """Two finished runs that differ in their width."""
    widths = {"small": 16, "wide": 32}
    return [write(tmp_path / name, wider(cfg, w), CURVES[name]) for name, w in widths.items()]


def compared(capsys, *args):
    door.main(["compare", *map(str, args)])
    said = capsys.readouterr()
    return said.err + said.out


def test_results_and_only_the_fields_that_differ(runs, capsys):
    title, *lines = compared(capsys, *runs).splitlines()
    due = "run steps tokens best held-out loss last tokens/s parameters"
    assert " ".join(title.split()) == due
    lines = [line.split() for line in lines]
    assert lines[0][:8] == ["small", "20", "5,120", "4.000", "after", "10", "4.500", "102"]
    assert lines[1][:7] == ["wide", "20", "5,120", "3.000", "after", "20", "3.000"]
    # GPT-2, one layer
    count = 300 * 32 + 32 * 32 + 2 * 64 + 2 * 32 + 4 * 32 * 32 + 4 * 32 + 2 * 32 * 32 + 32 + 32
    assert int(lines[1][8].replace(",", "")) == count
    assert lines[2:] == [["differs", "small", "wide"], ["model.d_model", "16", "32"]]


def test_curves_lie_over_each_other_in_one_chart(runs, capsys, tmp_path):
    compared(capsys, *runs, "--output", tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    assert page.count("<figure") == 1 and "http:" not in page and "https:" not in page
    for name, color in (("small", "c0"), ("wide", "c1")):
        heights = [-y for _, y in drawn(page, color)]
        assert np.argsort(heights).tolist() == np.argsort(CURVES[name]).tolist()
        assert f'{color}">{name}<' in page
    assert "<th>model.d_model<td>16<td>32" in page


def test_killed_in_mid_line_resumed_and_of_the_same_name(cfg, runs, capsys, tmp_path):
    killed = write(tmp_path / "other" / "wide", wider(cfg), (5.0, 4.2))
    with open(killed / "metrics.jsonl", "a") as file:
        file.write('{"step": 12, "split": "tr')
    lines = compared(capsys, runs[1], killed).splitlines()
    assert lines[1].split()[:2] == [str(runs[1]), "20"]
    assert lines[2].split()[:4] == [str(killed), "10", "of", "20"]
    assert lines[-1] == "no field of their configs differs"
    first = write(tmp_path / "first", wider(cfg), (5.0,))
    row = compared(capsys, first).splitlines()[1].split()
    assert row[:8] == ["first", "0", "of", "20", "-", "5.000", "after", "0"] and row[9] == "-"


def test_a_long_value_leaves_room_for_the_other_runs(cfg, runs, capsys, tmp_path):
    """Its cell wraps; all others stay on one line."""
    task = classifier(cfg, labels=tuple(f"a-class-name-{i}" for i in range(20)))
    long = write(tmp_path / "long", task, (0.5,), name="accuracy", loss=1.0)
    compared(capsys, long, runs[0], "--output", tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    (cell,) = re.findall(r"<td class=long>[^<]*a-class-name-19[^<]*", page)
    assert "a-class-name-0" in cell
    assert "td.long,th.long{white-space:normal;overflow-wrap:anywhere" in page


def test_another_tokenizer_is_compared_by_bytes(cfg, capsys, tmp_path):
    values = (wider(cfg), (5.0, 2.0))
    others = [write(tmp_path / f"{bits}_bpb", *values, bits_per_byte=bits) for bits in (1.5, 1.25)]
    config = others[1] / "config.json"
    another = '"tokenizer": "another",\n'
    config.write_text(re.sub(r'"tokenizer": "\w+",\n', another, config.read_text(), count=1))
    said = compared(capsys, *others)
    assert "notice: the tokenizers differ; compared by bits per byte" in said
    assert "1.250 after" in said


def test_other_objectives_are_said_to_be_others(cfg, runs, capsys, tmp_path):
    scored = write(tmp_path / "scored", classifier(cfg), (0.5, 0.9), name="accuracy", loss=1.0)
    said = compared(capsys, scored, runs[0], "--output", tmp_path / "out.html")
    others = "different objectives (causal_lm, classification), whose values measure different"
    assert others in said and "no metric in common" in said and "held-out" not in said
    assert "<figure" not in (tmp_path / "out.html").read_text()
    assert "90.0% after 10" in compared(capsys, scored)  # higher is better


def test_what_is_no_run_is_one_sentence(cfg, runs, refusal, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    nowhere = tmp_path / "nowhere"
    message = f"{empty}: no run has written a config.json there"
    assert message in refusal("compare", runs[0], empty)
    assert f"{nowhere}: no such directory" in refusal("compare", runs[0], nowhere)
    begun = write(tmp_path / "begun", wider(cfg), ())
    assert f"{begun}: metrics.jsonl has no evaluation yet" in refusal("compare", begun)
    (begun / "metrics.jsonl").unlink()
    assert "no evaluation yet" in refusal("compare", begun)
    config = begun / "config.json"
    config.write_text(config.read_text().replace('"steps": 20', '"steps": 30'))
    assert "is not what the run wrote" in refusal("compare", begun)
    for folders, output, message in (
        (runs, "x.pdf", "must end in .html"),
        (runs, nowhere / "x.html", "its folder does not exist; make it first"),
        ([runs[0]] * 9, "x.html", "draws at most 8 runs, and there are 9"),
    ):
        assert message in refusal("compare", *folders, "--output", output)
