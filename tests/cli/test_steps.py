"""Batches and values of past steps, found again from a workdir bit for bit, and the workdir
stays as it was."""

import collections
import contextlib
import dataclasses
import functools
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite import __main__ as door
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.checkpoints.digest import describe_leaves
from flaxformer_lite.checkpoints.record import read_record
from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.objectives.rows import row_ids
from flaxformer_lite.runs import batch_history, replay
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.start import resume
from tests.objectives import tables
from tests.runs import poison


@pytest.fixture(scope="module", autouse=True)
def traced_once():
    """Traces the steps of a run for the run and once more for all that is run again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "prepare_experiment", functools.cache(replay.prepare_experiment))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Sixteen steps and more than an epoch, with checkpoints of steps 8 and 16; the updates with a
    bad line are left out."""
    folder = tmp_path_factory.mktemp("replay")
    cfg = poison.config(folder, steps=16, checkpoint_every=8, keep=2, skip_spikes=6.0)
    flaxformer_lite.run(cfg, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def opened(run):
    return batch_history.open_history(run, allow_plugins=True)


def files_of(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}


def said(capsys, *args):
    door.main([*map(str, args), "--allow-plugins"])  # the objective is in tests/
    return capsys.readouterr().out


def test_rows_are_those_of_the_batches(opened):
    cfg = opened.cfg
    rows = cfg.train.batch_size
    # more than an epoch, so that a second packing is read
    assert 16 * rows > opened.data.num_examples
    with contextlib.closing(opened.data.batches(batch_size=rows, seed=cfg.seed)) as batches:
        for step in range(1, cfg.train.steps + 1):
            seen = next(batches)["inputs"]["input_ids"]
            due = [np.concatenate(row_ids(records, row)) for records, row in opened.rows(step)]
            for ids, own in zip(seen, due, strict=True):
                assert (ids[: len(own)] == own[: len(ids)]).all()


def test_a_line_leads_to_every_step_that_saw_it(run, opened, capsys):
    lines = [f"{opened.cfg.data.path}:{number}" for number in (17, 25)]
    seen = {line: set() for line in lines}
    for step in range(1, 17):
        for row, places in enumerate(opened.places(step)):
            for line in seen.keys() & set(places):
                seen[line].add((step, row))
    for line in lines:
        assert set(opened.saw(line, 16)) == seen[line]
        assert len(seen[line]) > 1
    told = said(capsys, "steps", "--workdir", run, "--document", lines[0]).splitlines()
    assert told == [f"step {step}  row {row}" for step, row in sorted(seen[lines[0]])]


def test_a_step_is_printed_with_its_lines(run, opened, capsys):
    text = json.loads((run.parent / "text.jsonl").read_text().splitlines()[16])["text"]
    step, row = next(opened.saw("text.jsonl:17", 16))
    lines = said(capsys, "steps", "--workdir", run, "--at", step).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"row {row} "))
    assert "text.jsonl:17" in lines[at]
    assert any(part in text for part in lines[at + 1].strip().split(" | "))


def test_the_losses_of_rows_make_the_loss_of_the_batch(run):
    point = replay.before_step(run, 9, allow_plugins=True)
    rows = replay.row_losses(point)
    whole = point.experiment.program.eval_step(point.state.params, point.batch)[0].mean()
    weights = np.asarray(point.batch["targets"]["weights"]).sum(axis=1)
    assert len(set(rows.tolist())) > 10
    assert (rows * weights).sum() / weights.sum() == pytest.approx(float(whole), rel=1e-5)


def test_a_step_again_is_the_same_bit_for_bit(run, opened, tmp_path, capsys):
    before = files_of(run)
    flags = ["--at", "16", "--output", tmp_path / "new"]
    told = said(capsys, "steps", "--workdir", run, "--run", *flags).splitlines()
    assert files_of(run) == before
    assert told[0] == "step 16 of 16, run again from checkpoint 8"
    assert told[1] == "loss and grad_norm equal the records of 3 steps from 12 to 16 bit for bit"
    losses = [float(line.split()[0]) for line in told if re.match(r" *\S+  row \d+  ", line)]
    assert len(losses) == 20 and losses == sorted(losses, reverse=True)
    folders = (tmp_path / "new", run)
    mine, theirs = (read_record(folder / "checkpoints" / "16") for folder in folders)
    assert mine["leaves"] == theirs["leaves"]
    # the same run continues
    cfg = workdir.read_config(tmp_path / "new", allow_plugins=True)
    resume.check(mine, cfg, opened.data.fingerprint)


@pytest.mark.nightly
def test_a_mixture_has_the_files_of_each_source(tmp_path):
    sources = {}
    for name in ("a", "b"):
        texts = [f"{name} tells {n}: {'and so on ' * (n % 5)}" for n in range(80)]
        path = tables.write_rows(tmp_path / f"{name}.jsonl", [{"text": text} for text in texts])
        sources[name] = SourceConfig(path=path)
    cfg = poison.config(tmp_path, steps=6)
    cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, path="", mixture=sources))
    mixed = batch_history.BatchHistory(cfg, open_dataset(cfg))
    seen = collections.defaultdict(set)
    for step in range(1, 7):
        for row, shown in enumerate(zip(mixed.places(step), mixed.texts(step), strict=True)):
            places, text = shown
            for place, piece in zip(places, text.split(" | "), strict=True):
                path, line = place.rsplit(":", 1)
                assert piece in Path(path).read_text().splitlines()[int(line) - 1]
                seen[place].add((step, row))
    place = next(place for place in seen if "b.jsonl" in place)
    assert set(mixed.saw(place, 6)) == seen[place]
    with pytest.raises(ConfigError, match="not in the training text"):
        list(mixed.saw("no such words", 6))


def test_misuse_is_one_sentence(run, tmp_path, refusal):
    stopped = Path(shutil.copytree(run, tmp_path / "stopped"))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["step"] <= 12]
    (stopped / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    last = "error: --at=15: the last step in metrics.jsonl is 12; name one that was taken."
    for message, (command, folder, *flags) in {
        last: ("steps", stopped, "--run", "--at", 15),
        "the run has the steps 1 to 16": ("steps", run, "--run", "--at", 17),
        "has the steps 1 to 16": ("steps", run, "--at", 17),
        "--at or --document is missing": ("steps", run),
        "exists already": ("steps", run, "--run", "--at", 3, "--output", tmp_path),
        "no run has written a config.json": ("steps", tmp_path, "--at", 3),
        "no such directory": ("steps", tmp_path / "none", "--at", 3),
    }.items():
        assert message in refusal(command, "--allow-plugins", "--workdir", folder, *flags)


@pytest.mark.nightly
def test_a_bad_line_is_found_end_to_end(tmp_path, capsys):
    message = r"not finite.*\d+: .*;.*its rows.*text.jsonl:\d+, .* and 16 more"
    with pytest.raises(RunError, match=message) as ended:
        flaxformer_lite.run(poison.config(tmp_path, steps=16), tmp_path / "run")
    shows = re.search(
        r"steps --workdir \S+ --at (\d+) --run shows the loss of each", str(ended.value)
    )
    capsys.readouterr()
    told = said(capsys, "steps", "--workdir", tmp_path / "run", "--run", "--at", shows[1]).split(
        "\n"
    )
    (title,) = (line for line in told if line.startswith("rows by their loss"))
    first = told[told.index(title) + 1]
    assert first.split()[0] == "nan" and f"text.jsonl:{poison.LINE}" in first


def test_left_out_updates_are_recorded_with_their_rows(run, opened):
    spikes = tables.read_split(run, "spike")
    steps = {step for step, _ in opened.saw(f"text.jsonl:{poison.LINE}", 16)}
    assert [record["step"] for record in spikes] == sorted(steps)
    for record in spikes:
        assert record["skipped"] == 1 and "loss" not in record
        assert record["rows"] == [", ".join(places) for places in opened.places(record["step"])]
    trained = tables.read_split(run, "train")
    assert all(math.isfinite(record["loss"]) for record in trained)
    assert sum(record["skipped"] for record in trained) == pytest.approx(len(spikes) / 3)
    report = (run / "report.html").read_text()
    assert "skipped updates" in report and f"{len(spikes)}, at step {spikes[0]['step']}" in report


def test_changed_text_is_refused(run, tmp_path, capsys, monkeypatch):
    shutil.copytree(run, tmp_path / "run")
    text = tmp_path / "text.jsonl"
    text.write_text((run.parent / "text.jsonl").read_text().replace("from 16:", "From 16:"))
    cfg = batch_history.read_config(run, allow_plugins=True)
    moved = dataclasses.replace(cfg.data, path=str(text), cache=str(tmp_path))
    cfg = dataclasses.replace(cfg, data=moved)
    monkeypatch.setattr(batch_history, "read_config", lambda folder, **allowed: cfg)
    for flags in ([], ["--run"]):
        with pytest.raises(SystemExit):
            said(capsys, "steps", "--workdir", tmp_path / "run", "--at", "3", *flags)
        assert "has changed since the run read it" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.nightly  # of a damaged checkpoint, test_loop.py
def test_without_the_nearest_checkpoint_an_earlier_state_leads_to_the_same(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints" / "8").rglob("d/*"):
        path.write_bytes(bytes(len(path.read_bytes())))
    point = replay.before_step(tmp_path / "run", 9, allow_plugins=True)
    assert point.start == 0 and "checkpoint of step 8 cannot be read" in point.notices[0]
    assert describe_leaves(point.state) == read_record(run / "checkpoints" / "8")["leaves"]
    assert replay.compare(run, point.values) == {3: 0.0, 6: 0.0}
    other = {step: at | {"loss": at["loss"] * 1.001} for step, at in point.values.items()}
    assert replay.compare(run, other) == pytest.approx({3: 1e-3, 6: 1e-3}, rel=1e-3)


def test_a_workdir_that_has_appeared_meanwhile_is_left_alone(tmp_path):
    with pytest.raises(ConfigError, match="exists already; name a new folder"):
        replay.save(None, None, tmp_path)
