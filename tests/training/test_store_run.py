"""A run whose workdir is in an object store ends as one on a disk does, and is read where it lies."""

import json

import pytest

from flaxformer_lite.checkpoints.record import read_record
from flaxformer_lite.cli import open_model
from flaxformer_lite.cli.inspect import read as contents_of
from flaxformer_lite.files.objects import Objects
from flaxformer_lite.training import loop, trainer
from flaxformer_lite.training.start.preflight import RunError
from tests.training import tiny_runs


class Killed(BaseException):
    """Ends a run wherever it is."""


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    return tiny_runs.config(
        tmp_path_factory.mktemp("store"), train={"steps": 4, "checkpoint_every": 2, "eval_every": 2}
    )


@pytest.fixture(scope="module")
def run(cfg, gcs, tmp_path_factory):
    """A run that was interrupted before it saved step 4, and continued where nothing of it is on the disk."""
    at, real = f"{gcs.url}/run", trainer.Trainer._settle

    def settle(self, ahead):
        real(self, ahead)
        if self._done >= 3:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "_settle", settle)
        with pytest.raises(Killed):
            loop.run(cfg, at)
    assert "ended by an error" in Objects(at).read("report.html").decode()
    gcs.fail(503, on="POST .*metrics")
    loop.run(cfg, at)
    return Objects(at)


def test_ends_as_on_a_disk_with_its_whole_history(run, cfg, tmp_path):
    loop.run(cfg, tmp_path / "disk")
    ours, theirs = (read_record(at) for at in (run.below("checkpoints/4"), tmp_path / "disk/checkpoints/4"))
    assert ours["leaves"] == theirs["leaves"] and ours["config_hash"] == theirs["config_hash"]
    lines = run.read("metrics.jsonl").splitlines(), (tmp_path / "disk/metrics.jsonl").read_bytes().splitlines()
    steps, expected = ([(json.loads(line)["step"], json.loads(line)["split"]) for line in part] for part in lines)
    assert steps == expected
    names = {name for name in run.names() if not name.startswith(("checkpoints/", "best/", "tensorboard/"))}
    assert names == {"config.json", "loss.png", "metrics.jsonl", "report.html", "tokenizer/tokenizer.bytes"}


def test_is_opened_where_it_lies(run):
    found = contents_of(open_model.folder_of(run.url))
    assert found.form.startswith("training workdir, step 4") and found.tensors
    assert open_model.open_model(run.url).tokenizer.encode("zero")


def test_a_folder_without_a_run_is_no_workdir(cfg, gcs):
    with pytest.raises(ValueError, match=r"gs://bucket/nothing: the bucket has no object of this name"):
        open_model.folder_of("gs://bucket/nothing")
    Objects("gs://bucket/published").write("config.json", b'{"model_type": "gpt2"}')
    with pytest.raises(RunError, match=r"holds a config.json that no run wrote"):
        loop.run(cfg, "gs://bucket/published")
