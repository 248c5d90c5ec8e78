import dataclasses
import shlex
from pathlib import Path

import pytest

import flaxformer_lite
from configs import demo
from flaxformer_lite import __main__, config
from flaxformer_lite.checkpoints.mirror import place_of
from flaxformer_lite.objectives import Metric, TextObjective
from flaxformer_lite.runs.report import text
from flaxformer_lite.runs.start import setup
from tests.training import tiny_runs


class History:
    def __init__(self, *records):
        self.records = records

    def of(self, split):
        return [r for r in self.records if r["split"] == split]


def result(loss, compiles=0):
    held = {"split": "eval", "loss": loss + 1, "perplexity": 50.0, "bits_per_byte": 1.5}
    history = History(
        {"split": "eval", "step": 0, "loss": 10.0, "nll": 9.0},
        {"split": "train", "step": 10, "tokens_per_second": 1000.0},
        {**held, "step": 20, "nll": loss},
    )
    baseline = ("unigram baseline", 6.0)
    return dict(text.closing(history, TextObjective.shown, baseline, compiles, Path("runs/x")))


def test_the_model_is_measured_against_the_baseline_by_text_alone():
    rows = result(4.0)
    assert rows["held-out loss"] == "9.000 before, 4.000 after 20 steps (nats per target)"
    assert rows["unigram baseline"] == "6.000; the model is 2.000 better"
    assert rows["perplexity"] == "50.0" and rows["speed"] == "1,000 tokens/s"
    assert "1.000 WORSE" in result(7.0)["unigram baseline"]


def test_a_headline_that_is_better_when_higher_and_an_objective_without_a_baseline():
    history = History({"split": "eval", "step": 20, "loss": 1.0, "accuracy": 0.75})
    metrics = Metric("accuracy", form=".1%", higher_is_better=True), Metric("loss")

    def rows(baseline, **options):
        return dict(text.closing(history, metrics, baseline, 0, Path("x"), **options))

    alone = rows(None)
    assert alone["held-out accuracy"] == "75.0% after 20 steps" and alone["loss"] == "1.000"
    assert "majority" not in alone
    assert alone["metrics"] == "x/metrics.jsonl"  # without trackers
    named = rows(None, trackers=("tensorboard",))
    assert named["metrics"] == "x/metrics.jsonl, x/tensorboard"
    for share, said in (
        (0.5, "50.0%; the model is 25.0 points better"),
        (0.75, "75.0%; the model is no better yet"),
        (0.75 + 1e-8, "75.0%; the model is no better yet"),
        (0.9, "90.0%; the model is 15.0 points WORSE so far"),
    ):
        assert rows(("majority", share))["majority"] == said


def test_late_compilations_are_a_warning():
    assert result(4.0)["compilations"] == "0 after step two"
    assert "WARNING" in result(4.0, compiles=3)["compilations"]


def test_next_commands_of_a_run_that_has_a_bucket_of_its_own_stay_in_it(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--config=c.py", "--workdir=gs://mine"])
    page = demo.get_config()
    page.train.trackers = ("tensorboard",)
    cfg = config.from_config_dict(config.ExperimentConfig, page)
    rows = dict(text.next_commands(cfg, place_of("gs://mine")))
    assert rows["watch"].endswith(" --logdir gs://mine")


@pytest.mark.nightly  # of a decoder, test_loop.py
@pytest.mark.parametrize(("family", "uses"), [("bert", {"guess", "compare"}), ("t5", {"write"})])
def test_what_is_offered_after_training_runs_as_printed(family, uses, tmp_path, capsys):
    cfg = tiny_runs.config(tmp_path, family, train={"steps": 1})
    flaxformer_lite.run(cfg, tmp_path / "a run")
    run_as_printed(capsys.readouterr().out, uses, capsys)


def run_as_printed(said, uses, capsys):
    """Runs the commands that a run offers at its end; test_loop.py does it for a decoder."""
    rows = (line.split(maxsplit=1) for line in said.split("next\n")[1].splitlines())
    offered = {row[0]: row[1] for row in rows if row[0] in ("write", "guess", "compare", "predict")}
    assert set(offered) == uses
    for line in offered.values():
        _, module, name, *args = shlex.split(line)
        assert (module, name) == ("-m", "flaxformer_lite")
        __main__.main(args)
        assert capsys.readouterr().out


def test_the_banner_says_what_was_read_and_held_out(tmp_path):
    cfg = tiny_runs.config(tmp_path)
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.txt", "c.md", "d.html", "e.png"):
        (tmp_path / "texts" / name).write_text(f"some words of {name}\n" * 200)
    data = dataclasses.replace(cfg.data, path=str(tmp_path / "texts"))
    experiment = setup.prepare_experiment(dataclasses.replace(cfg, data=data))
    rows = dict(text.banner(experiment, tmp_path / "run", 0))
    assert rows["data"].endswith("texts: 3 files (2 .txt, 1 .md), 11.8 kB; 334 examples")
    assert rows["held out"] == "36 examples, of 3 documents: 9.5% of the tokens"
    why = "not read, as the suffixes are not that of text, jsonl or a table"
    assert rows["notice"] == f"d.html, e.png: {why}"


def test_a_large_model_on_a_built_in_text_is_a_warning():
    page = demo.get_config()
    cfg = config.from_config_dict(config.ExperimentConfig, page)
    ((title, advice),) = text.warn_of_built_in_text(cfg, 1_557_611_200)
    assert title == "WARNING" and "1,557,611,200 parameters learn from the few" in advice
    page.data.path = "my_text"
    named = config.from_config_dict(config.ExperimentConfig, page)
    assert text.warn_of_built_in_text(named, 10**9) == text.warn_of_built_in_text(cfg, 10**7) == []


def test_next_commands_name_the_environment(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", "--config=c.py"])
    cfg = config.from_config_dict(config.ExperimentConfig, demo.get_config())
    rows = dict(text.next_commands(cfg, Path("runs/demo")))
    assert rows["write"].startswith(".venv/bin/python ")


def test_small_steps_are_not_shown_as_nothing():
    assert [text._giga(n) for n in (2_500_000, 1_234_567_890_123)] == ["2.5 M", "1,234.6 G"]
