"""Whole runs of tiny models: resume, refusals, failures, signals."""

import dataclasses
import html
import json
import os
import re
import shutil
import signal
import sys
import time
import types

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import flaxformer_lite
from flaxformer_lite.checkpoints.digest import describe_leaves
from flaxformer_lite.checkpoints.manager import CheckpointError, Checkpoints
from flaxformer_lite.checkpoints.workdir import read_run
from flaxformer_lite.config import ConfigError, MeshConfig, OptimizerConfig, to_config_dict
from flaxformer_lite.nn.attentions import dispatch
from flaxformer_lite.runs import loop, run as runs, trainer
from flaxformer_lite.runs.callbacks import evaluation, summary
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.interrupt import Interrupt
from flaxformer_lite.runs.report import metrics, text as report_text
from flaxformer_lite.runs.start import setup
from flaxformer_lite.runs.start.preflight import lock_workdir
from flaxformer_lite.runtime.processes import ALONE
from tests.runs import launched
from tests.runs.test_report import run_as_printed
from tests.training import tiny_runs

# before tests/conftest.py replaces them
BANNER = report_text.banner


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module")
def cfg(folder):
    """Eight steps of a GPT, without dropout, as meshes draw it differently."""
    return tiny_runs.config(folder)


@pytest.fixture(scope="module")
def finished(cfg, tmp_path_factory):
    """The workdir of these eight steps; only its copies are written to."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    flaxformer_lite.run(cfg, workdir)
    return workdir


def test_a_page_runs_as_its_records_do(cfg, finished, tmp_path):
    page = to_config_dict(tiny_runs.steps(cfg, 1))
    page.train.steps = 8
    copy = shutil.copytree(finished, tmp_path / "run")
    before = (copy / "config.json").read_text()
    result = flaxformer_lite.run(page, copy)  # the same run, which has ended
    evals = [{k: v for k, v in r.items() if k != "split"} for r in records(copy, "eval")]
    best = min(evals[1:], key=lambda record: record["nll"])
    assert result == runs.RunResult(8, evals[-1], best, str(copy), "")
    assert result.last["step"] == 8 and result.last["loss"] < evals[0]["loss"]
    assert (copy / "config.json").read_text() == before
    page.train.steps = -1
    with pytest.raises(ConfigError, match="steps"):
        flaxformer_lite.run(page, copy)


@pytest.fixture
def workdir(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture(scope="module")
def programs():
    return {}


@pytest.fixture
def traced_once(monkeypatch, programs):
    """Lets runs of one model share their traced steps, where what surrounds the steps is tested."""

    def prepare(cfg):
        key = tiny_runs.steps(cfg, 1, checkpoint_every=1)
        made = programs.setdefault(key, setup.prepare_experiment(cfg))
        own = dataclasses.replace(made.program.cfg, train=cfg.train)
        return dataclasses.replace(made, program=dataclasses.replace(made.program, cfg=own))

    monkeypatch.setattr(runs, "prepare_experiment", prepare)


@pytest.fixture(scope="module", autouse=True)
def forget_the_compilation_cache():
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


def records(workdir, split):
    return [r for r in metrics.read(workdir / "metrics.jsonl") if r["split"] == split]


def leaves_of(workdir, step):
    """Path -> SHA-256 of the checkpoint's leaves."""
    return {path: content for path, (_, _, content) in launched.digests(workdir, step).items()}


PRINTED = ("parameters", "attention: dense", "unigram baseline", "perplexity", "bits per byte")
PRINTED += ("tokens/s", "in steps, ", "of the process at most", "0 after step two", "next")
KEPT = {"loss", "grad_norm", "param_norm", "learning_rate", "tokens_per_second", "step_seconds"}
KEPT |= {"goodput", "peak_process_bytes"}


def test_a_run_learns_and_leaves_its_files(cfg, tmp_path, capsys, monkeypatch, traced_once):
    monkeypatch.setattr(report_text, "banner", BANNER)
    dispatch._log_choice.cache_clear()
    cfg = tiny_runs.steps(cfg, 30, eval_every=15, checkpoint_every=30, sample_tokens=9)
    flaxformer_lite.run(cfg, tmp_path)
    said = capsys.readouterr().out
    flops = runs.prepare_experiment(cfg).program.flops_per_step
    matrices = (384 + 4 * 16 + 2 * 32) * 16  # of the vocabulary, the attention and the MLP
    assert flops == 6 * 8 * 32 * matrices + 12 * 8 * 32 * 32 * 16
    for word in (*PRINTED, f"{flops / 1e6:.1f} MFLOP"):
        assert word in said, word
    evals = records(tmp_path, "eval")
    assert [r["step"] for r in evals] == [0, 15, 30]
    assert evals[-1]["loss"] < evals[0]["loss"] - 0.5
    trains = records(tmp_path, "train")
    assert [r["step"] for r in trains] == list(range(2, 31, 2))
    assert trains[1].keys() >= KEPT
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [15, 30]
    report = html.unescape((tmp_path / "report.html").read_text())
    assert "<p>finished: step 30 of 30; " in report
    texts = [sample["texts"][1][1] for sample in samples]
    assert all(text in report for text in texts)
    assert texts[1].splitlines()[0] in said
    config = json.loads((tmp_path / "config.json").read_text())["config"]
    assert config["model"]["vocab_size"] % 64 == 0
    assert list((tmp_path / "tokenizer").iterdir())
    run_as_printed(said, {"write"}, capsys)


def same_end(workdir, other):
    assert leaves_of(workdir, 8) == leaves_of(other, 8)
    assert records(workdir, "eval")[-1] == records(other, "eval")[-1]


def test_stopping_and_resuming_is_bit_for_bit_the_uninterrupted_run(
    cfg, finished, tmp_path, capsys
):
    flaxformer_lite.run(tiny_runs.steps(cfg, 3), tmp_path)
    capsys.readouterr()
    flaxformer_lite.run(cfg, tmp_path)
    said = capsys.readouterr().out
    assert "resuming" in said and "0 after step two" in said
    same_end(tmp_path, finished)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["examples.adam_mini:make", "muon", "schedule_free"])
def test_so_it_is_with_the_state_of_other_optimizers(name, cfg, tmp_path):
    chosen = OptimizerConfig(name=name, learning_rate=1e-2, schedule="constant", warmup_steps=2)
    cfg = dataclasses.replace(cfg, optimizer=chosen)
    flaxformer_lite.run(cfg, tmp_path / "straight")
    flaxformer_lite.run(tiny_runs.steps(cfg, 3), tmp_path / "twice")
    other = dataclasses.replace(cfg, optimizer=dataclasses.replace(chosen, name="adamw"))
    with pytest.raises(ConfigError, match=rf"optimizer.name: {name} -> adamw.*--workdir"):
        flaxformer_lite.run(other, tmp_path / "twice")
    flaxformer_lite.run(cfg, tmp_path / "twice")
    same_end(tmp_path / "twice", tmp_path / "straight")


@pytest.mark.nightly
def test_what_schedule_free_averages_is_evaluated_and_read(cfg, tmp_path):
    chosen = OptimizerConfig(name="schedule_free", learning_rate=1e-2, schedule="constant")
    cfg = dataclasses.replace(cfg, optimizer=chosen)
    flaxformer_lite.run(tiny_runs.steps(cfg, 2), tmp_path)
    read = describe_leaves({"params": read_run(tmp_path).params})
    stored = leaves_of(tmp_path, 2)
    path = "decoder/layer_0/mlp/up/kernel"
    assert read[f"params/{path}"][-1] == stored[f"opt_state/ema/{path}"] != stored[f"params/{path}"]


@pytest.mark.nightly
def test_so_it_is_with_dropout_and_microbatches(folder, tmp_path):
    """That each objective makes the same examples from any step on is tested in
    tests/data/test_dataset.py."""
    cfg = tiny_runs.with_dropout(tiny_runs.config(folder, "bert", train={"accumulate": 2}))
    flaxformer_lite.run(cfg, tmp_path / "straight")
    flaxformer_lite.run(tiny_runs.steps(cfg, 3), tmp_path / "twice")
    flaxformer_lite.run(cfg, tmp_path / "twice")
    same_end(tmp_path / "twice", tmp_path / "straight")


@pytest.mark.nightly  # fewer devices, test_two_processes.py; more, tests/checkpoints/test_store.py
def test_another_mesh_resumes_to_rounding_and_says_so(cfg, finished, workdir, capsys):
    shutil.rmtree(workdir / "checkpoints" / "8")
    split = MeshConfig(data=1, fsdp=2, tensor=2)
    flaxformer_lite.run(dataclasses.replace(cfg, mesh=split), workdir)
    assert "mesh.fsdp, mesh.tensor; results will match only" in capsys.readouterr().out
    same_to_rounding(workdir, finished)


@pytest.mark.nightly
def test_another_mode_resumes_to_rounding(cfg, finished, tmp_path, capsys):
    by_hand = MeshConfig(data=2, mode="pmap")
    flaxformer_lite.run(dataclasses.replace(tiny_runs.steps(cfg, 4), mesh=by_hand), tmp_path)
    flaxformer_lite.run(cfg, tmp_path)
    assert "mesh.data, mesh.mode; results will match only" in capsys.readouterr().out
    same_to_rounding(tmp_path, finished)


def same_to_rounding(moved, straight):
    ours, due = (records(one, "eval")[-1]["loss"] for one in (moved, straight))
    np.testing.assert_allclose(ours, due, rtol=1e-4)


def test_a_damaged_newest_checkpoint_is_trained_again(cfg, finished, workdir, capsys, traced_once):
    files = (workdir / "checkpoints" / "8" / "state").rglob("d/*")
    data = max(files, key=lambda path: path.stat().st_size)
    os.truncate(data, data.stat().st_size // 2)
    flaxformer_lite.run(cfg, workdir)
    assert "notice: checkpoint of step 8 is damaged" in capsys.readouterr().out
    assert leaves_of(workdir, 8) == leaves_of(finished, 8)
    trains = records(workdir, "train")
    assert [r["step"] for r in trains] == [2, 4, 6, 8]
    assert ["seconds_repeated" in r for r in trains] == [False, False, True, False]
    assert 0 < trains[-1]["goodput"] < 1


def test_nan_stops_at_its_step_and_keeps_the_last_good_checkpoint(
    cfg, tmp_path, monkeypatch, traced_once
):
    cfg = tiny_runs.steps(cfg, 20, checkpoint_every=3)
    real = runs.prepare_experiment

    def poisoned(cfg):
        experiment = real(cfg)

        def step(state, batch):
            state, out = experiment.program.train_step(state, batch)
            broken = jax.numpy.where(state.step >= 5, jax.numpy.nan, out["loss"])
            return state, {**out, "loss": broken}

        program = dataclasses.replace(experiment.program, train_step=jax.jit(step))
        return dataclasses.replace(experiment, program=program)

    monkeypatch.setattr(runs, "prepare_experiment", poisoned)
    norms = r"loss nan, gradient norm \d.*, parameter norm \d"
    said = rf"not finite at step 5: {norms}.*last good checkpoint is step 3"
    with pytest.raises(RunError, match=said):
        flaxformer_lite.run(cfg, tmp_path)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()) == ["3"]
    assert "<p>ended by an error (not finite at step 5: " in (tmp_path / "report.html").read_text()


def test_a_report_and_samples_that_cannot_be_written_are_one_notice_each(
    cfg, finished, tmp_path, capsys, traced_once, monkeypatch
):
    def sample(*args, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(evaluation, "sample_text", sample)
    (tmp_path / "report.html").mkdir()
    flaxformer_lite.run(tiny_runs.steps(cfg, 8, sample_tokens=5), tmp_path)
    said = capsys.readouterr().out
    assert said.count("notice: report.html cannot be written") == 1
    unwritten = "a sample cannot be written (out of memory); the run continues without it."
    assert said.count(f"notice: {unwritten}") == 1
    same_end(tmp_path, finished)


def test_sigterm_finishes_the_step_and_saves(cfg, tmp_path, monkeypatch, capsys, traced_once):
    cfg = tiny_runs.steps(cfg, 50, checkpoint_every=50)
    before = signal.getsignal(signal.SIGTERM)
    real = trainer.Trainer._settle

    def settle(self, ahead):
        if ahead and self._in_flight[-1][0] == 5:
            os.kill(os.getpid(), signal.SIGTERM)
            while not interrupt.caught:
                time.sleep(0.001)
        real(self, ahead)

    monkeypatch.setattr(trainer.Trainer, "_settle", settle)
    with Interrupt() as interrupt:
        result = flaxformer_lite.run(cfg, tmp_path, interrupt=interrupt)
    assert result.signal == "SIGTERM" and result.steps == 5 and result.last["step"] == 4
    said = "SIGTERM: stopped after step 5 and saved; the same command continues."
    assert said in capsys.readouterr().out
    assert leaves_of(tmp_path, 5)
    assert "<p>stopped by SIGTERM: step 5 of 50; " in (tmp_path / "report.html").read_text()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_that_is_done_says_so_and_a_last_single_step_compiles_without_a_warning(
    cfg, workdir, capsys, traced_once
):
    flaxformer_lite.run(tiny_runs.steps(cfg, 9), workdir)
    assert "WARNING" not in capsys.readouterr().out
    before = leaves_of(workdir, 9)
    flaxformer_lite.run(tiny_runs.steps(cfg, 3), workdir)
    said = "notice: step 9 is done and train.steps=3: nothing is left to train."
    assert said in capsys.readouterr().out
    assert leaves_of(workdir, 9) == before


def test_other_text_and_another_seed_are_refused(folder, cfg, workdir, tmp_path):
    text = (folder / "text.jsonl").read_text()
    (tmp_path / "text.jsonl").write_text(text.replace("seven", "SEVEN"))
    data = dataclasses.replace(cfg.data, path=str(tmp_path / "text.jsonl"))
    for changed, said in (
        ({"data": data}, "text or tokenizer: "),
        ({"seed": 7}, "step 8: seed: 0 -> 7.*--workdir"),
    ):
        with pytest.raises(ConfigError, match=said):
            flaxformer_lite.run(dataclasses.replace(cfg, **changed), workdir)


def test_one_run_at_a_time_in_a_workdir(folder, tmp_path):
    with lock_workdir(tmp_path, ALONE), pytest.raises(RunError, match="another run is writing to"):
        flaxformer_lite.run(tiny_runs.config(folder), tmp_path)


def test_workdir_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write in .*another --workdir"):
        flaxformer_lite.run(tiny_runs.config(folder), tmp_path / "file" / "run")


def test_a_batch_that_does_not_split_is_refused_before_the_data_is_read(folder, tmp_path):
    cfg = tiny_runs.config(folder, train={"batch_size": 12}, mesh=MeshConfig(data=8))
    with pytest.raises(ConfigError, match=r"^train.batch_size=12: .*try train.batch_size=16"):
        flaxformer_lite.run(cfg, tmp_path)


class Heard(Callback):
    """A list of what it hears."""

    def __init__(self):
        self.calls = []

    def step_begins(self, step):
        self.calls.append(("begins", step))

    def step_done(self, step, values, seconds):
        assert values["loss"] > 0 and (seconds is None) == (step == 1)
        self.calls.append(("done", step))

    def recorded(self, record):
        self.calls.append((record["split"], record["step"]))

    def evaluated(self, step, record):
        assert record["split"] == "eval" and record["step"] == step
        self.calls.append(("evaluated", step))

    def close(self):
        self.calls.append("close")


def test_a_callback_hears_all_that_the_run_does_in_order(cfg, tmp_path, monkeypatch, traced_once):
    heard = Heard()
    monkeypatch.setattr(loop, "Tracking", lambda *_: heard)
    flaxformer_lite.run(tiny_runs.steps(cfg, 4, checkpoint_every=2), tmp_path)
    two = [("done", 1), ("done", 2), ("train", 2)]
    four = [("done", 3), ("done", 4), ("train", 4)]
    begun, ended = ([("eval", step), ("evaluated", step)] for step in (0, 4))
    due = [*begun, *two, *four, *ended, "close"]
    assert [call for call in heard.calls if call[0] != "begins"] == due
    assert [call[1] for call in heard.calls if call[0] == "begins"] == [1, 2, 3, 4]
    for step in (1, 2, 3, 4):
        assert heard.calls.index(("begins", step)) < heard.calls.index(("done", step))


def test_a_callback_closes_after_an_error_and_ends_the_run_with_its_own(
    cfg, tmp_path, monkeypatch, traced_once
):
    class Refusing(Heard):
        def step_done(self, step, values, seconds):
            raise RunError("enough")

    heard = Refusing()
    monkeypatch.setattr(loop, "Tracking", lambda *_: heard)
    with pytest.raises(RunError, match="enough"):
        flaxformer_lite.run(tiny_runs.steps(cfg, 4), tmp_path)
    assert heard.calls[-1] == "close" and not list((tmp_path / "checkpoints").glob("4"))
    assert "ended by an error (enough)" in (tmp_path / "report.html").read_text()


def test_a_failing_background_save_ends_the_run_with_the_last_good_step(
    cfg, tmp_path, monkeypatch, traced_once
):
    real = Checkpoints.save

    def fail(*args, **options):
        raise OSError(28, "No space left")

    def save(self, step, state, meta):
        if step == 8:
            monkeypatch.setattr(self._storage._manager, "save", fail)
        real(self, step, state, meta)

    monkeypatch.setattr(Checkpoints, "save", save)
    said = r"step 8 was not written.*No space left.*last.*checkpoint.*4"
    with pytest.raises(CheckpointError, match=said):
        flaxformer_lite.run(cfg, tmp_path)


def test_a_notebook_gets_the_curve_at_the_end(cfg, tmp_path, monkeypatch, traced_once):
    shown = []
    display = types.SimpleNamespace(HTML=str, display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(summary, "in_notebook", lambda: True)
    flaxformer_lite.run(tiny_runs.steps(cfg, 2), tmp_path / "run")
    (frame,) = shown
    framed = re.fullmatch(r'<iframe srcdoc="(.*?)" style="[^"]*"></iframe>', frame, re.S)
    page = html.unescape(framed[1])
    assert page.startswith("<!doctype html>") and page.count("<figure") == 1
    assert "<b>loss (nats per target)</b>" in page and "unigram baseline" in page
