"""Whole runs of tiny models: resume, refusals, failures, signals."""

import dataclasses
import json
import os
import signal

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from flaxformer_lite.attentions import dispatch
from flaxformer_lite.checkpoints.manager import CheckpointError, Checkpoints
from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.runtime.processes import ALONE
from flaxformer_lite.training import loop
from flaxformer_lite.training.report import metrics
from flaxformer_lite.training.start import setup
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module", autouse=True)
def forget_the_compilation_cache():
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


def leaves_of(workdir, step):
    """Path -> SHA-256 of the checkpoint's leaves."""
    meta = json.loads(next((workdir / "checkpoints" / str(step) / "meta").rglob("metadata")).read_text())
    return {path: content for path, (_, _, content) in meta["leaves"].items()}


def test_a_run_learns_and_leaves_its_files(folder, tmp_path, capsys):
    dispatch._say.cache_clear()
    loop.run(
        tiny_runs.config(folder, train={"steps": 30, "eval_every": 15, "checkpoint_every": 30, "sample_tokens": 9}),
        tmp_path,
    )
    said = capsys.readouterr().out
    for word in (
        "parameters",
        "attention: dense",
        "unigram baseline",
        "perplexity",
        "bits per byte",
        "tokens/s",
        "0 after step two",
        "next",
    ):
        assert word in said, word
    evals = [r for r in metrics.read(tmp_path / "metrics.jsonl") if r["split"] == "eval"]
    assert [r["step"] for r in evals] == [0, 15, 30]
    assert evals[-1]["loss"] < evals[0]["loss"] - 0.5
    trains = [r for r in metrics.read(tmp_path / "metrics.jsonl") if r["split"] == "train"]
    assert [r["step"] for r in trains] == list(range(2, 31, 2))
    assert {"loss", "grad_norm", "param_norm", "learning_rate", "tokens_per_second", "step_seconds"} <= trains[1].keys()
    assert (tmp_path / "loss.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "config.json").read_text())["config"]["model"]["vocab_size"] % 64 == 0
    assert list((tmp_path / "tokenizer").iterdir()) and list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_stopping_and_resuming_is_bit_for_bit_the_uninterrupted_run(folder, tmp_path, family):
    cfg = tiny_runs.config(folder, family, train={"accumulate": 2 if family == "bert" else 1})
    loop.run(cfg, tmp_path / "straight")
    loop.run(tiny_runs.steps(cfg, 3), tmp_path / "twice")
    loop.run(cfg, tmp_path / "twice")
    assert leaves_of(tmp_path / "twice", 8) == leaves_of(tmp_path / "straight", 8)
    straight, twice = (metrics.read(tmp_path / name / "metrics.jsonl")[-1] for name in ("straight", "twice"))
    assert straight == twice


def test_another_mesh_and_mode_resume_to_rounding_and_say_so(folder, tmp_path, capsys):
    cfg = tiny_runs.config(folder)
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, dropout=0.0))
    loop.run(cfg, tmp_path / "straight")
    by_hand = MeshConfig(data=2, mode="pmap")
    loop.run(dataclasses.replace(tiny_runs.steps(cfg, 4), mesh=by_hand), tmp_path / "moved")
    loop.run(dataclasses.replace(cfg, mesh=MeshConfig(data=2, fsdp=2, tensor=2)), tmp_path / "moved")
    assert "mesh.fsdp, mesh.mode, mesh.tensor; equal to rounding" in capsys.readouterr().out
    straight, moved = (metrics.read(tmp_path / name / "metrics.jsonl")[-1] for name in ("straight", "moved"))
    np.testing.assert_allclose(moved["loss"], straight["loss"], rtol=1e-4)


def test_a_damaged_newest_checkpoint_is_trained_again(folder, tmp_path, capsys):
    cfg = tiny_runs.config(folder)
    loop.run(cfg, tmp_path)
    before = leaves_of(tmp_path, 8)
    data = max((tmp_path / "checkpoints" / "8" / "state").rglob("d/*"), key=lambda p: p.stat().st_size)
    os.truncate(data, data.stat().st_size // 2)
    loop.run(cfg, tmp_path)
    assert "notice: checkpoint of step 8 is damaged" in capsys.readouterr().out
    assert leaves_of(tmp_path, 8) == before
    assert [r["step"] for r in metrics.read(tmp_path / "metrics.jsonl") if r["split"] == "train"] == [2, 4, 6, 8]


def test_nan_stops_at_its_step_and_keeps_the_last_good_checkpoint(folder, tmp_path, monkeypatch):
    cfg = tiny_runs.config(folder, train={"steps": 20, "checkpoint_every": 3})
    real = setup.prepare

    def poisoned(cfg):
        experiment = real(cfg)

        def step(state, batch):
            state, out = experiment.train_step(state, batch)
            broken = jax.numpy.where(state.step >= 5, jax.numpy.nan, out["loss"])
            return state, {**out, "loss": broken}

        return dataclasses.replace(experiment, train_step=jax.jit(step))

    monkeypatch.setattr(loop, "prepare", poisoned)
    expected = r"not finite at step 5: loss nan, gradient norm \d.*, parameter norm \d.*last good checkpoint is step 3"
    with pytest.raises(loop.RunError, match=expected):
        loop.run(cfg, tmp_path)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()) == ["3"]


def test_sigterm_finishes_the_step_and_saves(folder, tmp_path, monkeypatch, capsys):
    cfg = tiny_runs.config(folder, train={"steps": 50, "checkpoint_every": 50})
    real = loop.Trainer._settle

    def settle(self, ahead):
        if ahead and self._in_flight[-1][0] == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        real(self, ahead)

    monkeypatch.setattr(loop.Trainer, "_settle", settle)
    assert loop.run(cfg, tmp_path) == "SIGTERM"
    assert "SIGTERM: stopped after step 5 and saved; the same command continues." in capsys.readouterr().out
    assert leaves_of(tmp_path, 5)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_run_that_is_done_says_so_and_a_last_single_step_compiles_without_a_warning(folder, tmp_path, capsys):
    cfg = tiny_runs.config(folder)
    loop.run(tiny_runs.steps(cfg, 4), tmp_path)
    loop.run(tiny_runs.steps(cfg, 5), tmp_path)
    assert "WARNING" not in capsys.readouterr().out
    before = leaves_of(tmp_path, 5)
    loop.run(tiny_runs.steps(cfg, 3), tmp_path)
    assert "notice: step 5 is done and train.steps=3: nothing is left to train." in capsys.readouterr().out
    assert leaves_of(tmp_path, 5) == before


def test_a_config_that_matters_is_refused_with_then_and_now(folder, tmp_path):
    cfg = tiny_runs.config(folder)
    loop.run(tiny_runs.steps(cfg, 2), tmp_path)
    changed = dataclasses.replace(
        cfg, seed=7, optimizer=dataclasses.replace(cfg.optimizer, learning_rate=0.5), train=cfg.train
    )
    with pytest.raises(ConfigError, match=r"step 2: optimizer.learning_rate: 0.01 -> 0.5; seed: 0 -> 7.*--workdir"):
        loop.run(changed, tmp_path)
    wider = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, d_model=32))
    with pytest.raises(ConfigError, match=r"model.d_model: 16 -> 32"):
        loop.run(wider, tmp_path)


def test_other_text_is_refused(folder, tmp_path):
    cfg = tiny_runs.config(folder)
    loop.run(tiny_runs.steps(cfg, 2), tmp_path / "run")
    (tmp_path / "text.jsonl").write_text((folder / "text.jsonl").read_text().replace("seven", "SEVEN"))
    other = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, path=str(tmp_path / "text.jsonl")))
    with pytest.raises(ConfigError, match="text or tokenizer: "):
        loop.run(other, tmp_path / "run")


def test_one_run_at_a_time_in_a_workdir(folder, tmp_path):
    with loop.lock_workdir(tmp_path, ALONE), pytest.raises(loop.RunError, match="another run is writing to"):
        loop.run(tiny_runs.config(folder), tmp_path)


def test_workdir_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(loop.RunError, match=r"cannot write in .*another --workdir"):
        loop.run(tiny_runs.config(folder), tmp_path / "file" / "run")


def test_a_batch_that_does_not_split_is_refused_before_the_data_is_read(folder, tmp_path):
    cfg = dataclasses.replace(tiny_runs.config(folder, train={"batch_size": 12}), mesh=MeshConfig(data=8))
    with pytest.raises(ConfigError, match=r"try train.batch_size=16"):
        loop.run(cfg, tmp_path)


def test_a_failing_background_save_ends_the_run_with_the_last_good_step(folder, tmp_path, monkeypatch):
    cfg = tiny_runs.config(folder)
    real = Checkpoints.save

    def save(self, step, state, meta):
        if step == 8:
            monkeypatch.setattr(
                self._manager, "save", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "No space left"))
            )
        real(self, step, state, meta)

    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(CheckpointError, match=r"step 8 was not written.*No space left.*last good checkpoint is step 4"):
        loop.run(cfg, tmp_path)
