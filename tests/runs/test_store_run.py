"""A run whose workdir is in an object store ends as one on a disk does, and is read where it
lies."""

import contextlib
import itertools
import json
import re
import tempfile

import pytest

import flaxformer_lite
from flaxformer_lite import __main__ as door
from flaxformer_lite.checkpoints import resolve_path
from flaxformer_lite.checkpoints.record import read_record
from flaxformer_lite.cli import launch, open_model
from flaxformer_lite.cli.inspect import read as contents_of
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.start.setup import Experiment
from flaxformer_lite.storage import lock
from flaxformer_lite.storage.lock import Lock
from flaxformer_lite.storage.objects import Objects
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def cfg(tmp_path_factory):
    train = {"steps": 4, "checkpoint_every": 2, "eval_every": 2}
    return tiny_runs.config(tmp_path_factory.mktemp("store"), train=train)


@pytest.fixture(scope="module")
def run(cfg, gcs, prepared_once):
    """A run whose data ended before step 4, and that was continued where nothing of it is on the
    disk."""
    at = f"{gcs.url}/run"
    real = Experiment.train_batches

    def cut(self, start):
        with contextlib.closing(real(self, start)) as batches:
            yield from itertools.islice(batches, 3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "train_batches", cut)
        with pytest.raises(RunError, match=r"data ended at step 4 of 4; .*truncated"):
            flaxformer_lite.run(cfg, at)
    assert "ended by an error" in Objects(at).read("report.html").decode()
    gcs.fail(503, on="POST .*metrics")
    flaxformer_lite.run(cfg, at)
    return Objects(at)


FILES = {"README.md", "baseline.json", "config.json", "metrics.jsonl", "report.html"}
FILES |= {"tokenizer/tokenizer.bytes"}


def test_ends_as_on_a_disk_with_its_whole_history(run, cfg, tmp_path):
    flaxformer_lite.run(cfg, tmp_path / "disk")
    disk = tmp_path / "disk"
    ours, theirs = map(read_record, (run.below("checkpoints/4"), disk / "checkpoints/4"))
    for name in ("leaves", "config_hash", "losses"):
        assert ours[name] == theirs[name]
    assert len(ours["losses"]) == 4

    def steps(lines):
        return [(one["step"], one["split"]) for one in map(json.loads, lines.splitlines())]

    assert steps(run.read("metrics.jsonl")) == steps((disk / "metrics.jsonl").read_bytes())
    folders = ("checkpoints/", "best/", "tensorboard/")
    assert {name for name in run.names() if not name.startswith(folders)} == FILES
    # the run's name, as on a disk
    assert f"<title>{run.url.rpartition('/')[2]}" in run.read("report.html").decode()


def test_is_opened_where_it_lies(run):
    found = contents_of(open_model.folder_of(run.url))
    assert found.form.startswith("training workdir, step 4") and found.tensors
    assert open_model.open_model(run.url).tokenizer.encode("zero")


def test_a_folder_without_a_run_is_no_workdir(cfg, gcs):
    with pytest.raises(ValueError, match=r"gs://bucket/nothing:.*no object"):
        open_model.folder_of("gs://bucket/nothing")
    Objects("gs://bucket/published").write("config.json", b'{"model_type": "gpt2"}')
    with pytest.raises(RunError, match=r"holds a config.json that no run wrote"):
        flaxformer_lite.run(cfg, "gs://bucket/published")


def test_a_second_run_is_refused_without_a_trace_and_no_temporary_folder_is_left(
    run, cfg, capfd, monkeypatch, tmp_path
):
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = run.names()
    with Lock(run, "first"), pytest.raises(SystemExit):
        launch.main(to_config_dict(cfg), run.url)
    assert "error: another run is writing to gs://bucket/run: process" in capfd.readouterr().err
    assert run.names() == before
    assert not list(tmp_path.iterdir())  # of the log
    launch.main(to_config_dict(cfg), run.url)
    assert not list(tmp_path.iterdir())


def test_messages_name_the_place_of_the_copy(run, gcs, capsys):
    def refused(*command):
        with pytest.raises(SystemExit):
            door.main(list(command))
        return capsys.readouterr().err

    plain = f"{gcs.url}/plain"
    Objects(plain).write("config.json", b'{"model_type": "gpt2"}')
    for command in (["compare", plain], ["steps", "--at", "1", "--workdir", plain]):
        assert re.search(r"gs/bucket/plain\S*: no run has written a config", refused(*command))
    config = run.read("config.json")
    for cut, why in ((b"", "Expecting value"), (config[:99], "Expecting property name")):
        run.write("config.json", cut)
        resolve_path._copy_of.cache_clear()  # of the commands before
        said = refused("generate", "--model", run.url, "--prompt", "zero")
        assert f"{run.url.replace('://', '/')}/config.json is not JSON ({why}" in said
    run.write("config.json", config)
