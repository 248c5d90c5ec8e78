"""report.html of a run: complete, by itself, and of the records."""

import base64
import dataclasses
import hashlib
import html.parser
import json
import re
import sys

import pytest

from flaxformer_lite.runs.report.clock import Clock
from flaxformer_lite.runs.report.metrics import Recorder
from flaxformer_lite.runs.report.run_page import MAX_SAMPLES, RunPage
from tests.runs.test_chart import drawn
from tests.training import tiny_runs

HOSTILE = "<script>alert(1)</script> & \ud800\0"


def record(recorder, steps, **others):
    for step in range(0, steps + 1, 10):
        if step:
            train = {"loss": 5.0 - step / 100, "grad_norm": 1.0, "learning_rate": 1e-3}
            if step > 10:
                others |= {"step_seconds": 0.5, "tokens_per_second": 100.0 + step, "data_wait": 0.1}
            recorder.add({"step": step, "split": "train", "nll": train["loss"], **train, **others})
        if step % 20 == 0:
            held = {"loss": 5.0, "nll": 5.0 - step / 200, "accuracy": step / 1000}
            recorder.add({"step": step, "split": "eval", **held})
            recorder.add_sample(step, [("the model goes on", f"{HOSTILE} {step} ")])


def spent():
    clock = Clock()
    clock.seconds.update({"steps": 7500, "compile": 2500})
    return clock


COMMAND = "train.py --config=gpt2_tiny --config.train.batch_size=8 --workdir=x"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that writes the report of a run without training; returns its HTML."""
    monkeypatch.setattr(sys, "argv", COMMAND.split(" "))

    def write(steps=100, **others):
        asked = tiny_runs.config(tmp_path, train={"steps": steps, "epochs": 0})
        cfg = dataclasses.replace(asked, model=dataclasses.replace(asked.model, vocab_size=300))
        recorder = Recorder(tmp_path, -1)
        page = RunPage(tmp_path, cfg, asked, [("model", "a <b>tiny</b> one")], recorder, spent())
        record(recorder, steps, **others)
        rows = [("speed", "12 tokens/s")]
        level = ("unigram baseline", 4.8)
        page.write("running: step 40 of 100", rows, level, ("best by loss, after 40 steps", 40))
        return (tmp_path / "report.html").read_text()

    return write


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []
        self.texts = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}

    def handle_data(self, data):
        self.texts.append(data)


SECTIONS = ["Result", "Run", "Curves", "Texts", "Evaluations", "Config", "Time and memory"]
SECTIONS += ["Environment"]


def test_it_needs_nothing_else_and_texts_are_texts(written):
    page = Links()
    page.feed(written())
    assert not {"link", "img", "iframe", "b2"} & set(page.tags)
    assert page.tags.count("script") == 1
    text = "".join(page.texts)
    assert not any(word in text for word in ("url(", "@import", "http"))
    assert "<script>alert(1)</script> & ?" in text and "a <b>tiny</b> one" in text
    assert "<th>whole time<td class=long>2:46:40: 75% in steps, 25% compiling" in written()
    assert sorted(SECTIONS, key=text.index) == SECTIONS


def test_a_browser_runs_its_own_script_and_no_other(written):
    text = written()
    (script,) = re.findall(r"<script>(.*?)</script>", text.partition("</style>")[2], re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and "default-src 'none'" in text


TITLES = ["accuracy", "loss with all its terms", "grad norm", "learning rate", "rare metric"]
TITLES += ["tokens per second", "data wait"]


def test_its_curves_are_those_of_the_records(written):
    first, *others = re.findall(r"<figure.*?</figure>", written(rare_metric=7.0), re.S)
    assert "<b>loss (nats per target)</b>" in first and "unigram baseline, 4.8" in first
    assert 'd="M40 0V100"' in first and "best by loss, after 40 steps<" in first
    assert "best by loss" not in "".join(others)
    assert [re.search("<b>(.*?)</b>", figure)[1] for figure in others] == TITLES
    assert len(drawn(first, "train")) == 10
    assert [x for x, _ in drawn(first, "c0")] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    heights = [y for _, y in drawn(others[0], "c0")]
    assert heights == sorted(heights, reverse=True)  # accuracy grows


def test_the_config_tells_who_set_what(written):
    text = written()
    assert "<th>train.batch_size<td>8<td>command line" in text
    assert "<th>model.vocab_size<td>300<td>the run; was 0" in text
    assert "<th>model.vocab_size<td><mark>300</mark>" in text and "<th>model.d_model<td>16" in text
    assert COMMAND in text


def test_texts_are_the_newest_first_and_not_all_of_a_long_run(written):
    steps = [int(step) for step in re.findall(r"after step (\d+)<", written(steps=20 * 100))]
    assert (steps[0], steps[-1], len(steps)) == (2000, 0, MAX_SAMPLES)
    assert steps == sorted(steps, reverse=True)


def test_a_run_that_ended_before_its_first_record_has_a_page(tmp_path):
    cfg = tiny_runs.config(tmp_path)
    page = RunPage(tmp_path, cfg, cfg, [], Recorder(tmp_path, -1), spent())
    page.write("ended by an error (no reward)", [], None, None)
    assert "ended by an error (no reward)" in (tmp_path / "report.html").read_text()


def test_a_long_run_has_a_small_page(written):
    assert len(written(steps=10_000, **{f"metric_{i}": float(i) for i in range(3)})) < 300_000


def test_texts_rewind_to_the_restored_step_and_damaged_lines_are_dropped(tmp_path):
    path = tmp_path / "samples.jsonl"
    record(Recorder(tmp_path, -1), 60)
    bad = ['{"step": "3", "texts": []}', '{"step": 3}', '{"step": 3, "texts": [["a", 1]]}']
    path.write_text(path.read_text() + "\n".join([*bad, '{"step": 40, "te']))
    again = Recorder(tmp_path, 40)
    again.add_sample(45, [("a", "b")])
    kept = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert kept == [0, 20, 40, 45] == [sample["step"] for sample in again.samples]
    assert Recorder(tmp_path, -1).samples == [] and path.read_text() == ""
