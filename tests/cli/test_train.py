import argparse
import dataclasses
import logging
import signal
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite.__main__ import main
from flaxformer_lite.checkpoints.workdir import read_run
from flaxformer_lite.cli import launch, train
from tests.training import tiny_runs


@pytest.fixture
def handlers():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore:the load_module")  # of ml_collections
def test_libraries_may_log_again_after_a_run(handlers, monkeypatch, tmp_path):
    root = logging.getLogger()
    during = []
    before = root.level
    monkeypatch.setattr(launch, "main", lambda *_, **__: during.append(root.level))
    joining = dict.fromkeys(train.FLAGS)
    train.run(
        argparse.Namespace(workdir=str(tmp_path), overrides=["--config=gpt2_tiny"], **joining)
    )
    assert during == [logging.CRITICAL] and root.level == before <= logging.WARNING


@pytest.mark.nightly
def test_every_path_may_lead_through_the_folder_above(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "data").mkdir()
    cfg = tiny_runs.config(tmp_path / "data", train={"steps": 1, "sample_tokens": 0})
    monkeypatch.chdir(tmp_path / "here")
    data = dataclasses.replace(cfg.data, path="../data/text.jsonl", cache="../data/cache")
    cfg = dataclasses.replace(cfg, data=data)
    workdir = Path("../runs/rel")
    flaxformer_lite.run(cfg, workdir)
    flaxformer_lite.run(tiny_runs.steps(cfg, 2), workdir)
    assert read_run(workdir).step == 2
    flaxformer_lite.run(tiny_runs.steps(cfg, 1, init_from="../runs/rel"), Path("../runs/other"))
    main(["convert", "../runs/rel", "../out/weights"])
    asking = ["--prompt", "The ", "--max_new_tokens", "2"]
    main(["generate", "--model", "../runs/rel", *asking])
    from_run = capsys.readouterr().out.splitlines()[-1]
    main(["generate", "--model", "../out/weights", *asking])
    assert capsys.readouterr().out.splitlines()[-1] == from_run
