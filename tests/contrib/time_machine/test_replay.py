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
from flaxformer_lite.contrib.time_machine import replay, run_history
from flaxformer_lite.data.pipeline import open_dataset
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.start import resume
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
    flaxformer_lite.run(
        poison.config(folder, steps=16, checkpoint_every=8, keep=2, skip_spikes=6.0), folder / "run"
    )
    return folder / "run"


@pytest.fixture(scope="module")
def opened(run):
    return run_history.open_history(run, allow_plugins=True)


def files_of(folder):
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    }


def said(capsys, *args):
    door.main([*map(str, args), "--allow-plugins"])  # the objective is in tests/
    return capsys.readouterr().out


def refused(capsys, *args):
    with pytest.raises(SystemExit):
        door.main([*map(str, args), "--allow-plugins"])
    return capsys.readouterr().err.splitlines()[-1]


def test_rows_are_those_of_the_batches(opened):
    cfg = opened.cfg
    assert 16 * cfg.train.batch_size > opened.data.num_examples, (
        "more than an epoch, so that a second packing is read"
    )
    with contextlib.closing(
        opened.data.batches(batch_size=cfg.train.batch_size, seed=cfg.seed)
    ) as batches:
        for step in range(1, cfg.train.steps + 1):
            seen = next(batches)["inputs"]["input_ids"]
            due = [np.concatenate(records.row(row)) for records, row in opened.rows(step)]
            assert all(
                (ids[: len(own)] == own[: len(ids)]).all()
                for ids, own in zip(seen, due, strict=True)
            )


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
    told = said(
        capsys, "replay", "--workdir", run, "--at", "16", "--output", tmp_path / "new"
    ).splitlines()
    assert files_of(run) == before
    assert told[0] == "step 16 of 16, run again from checkpoint 8"
    assert told[1] == "loss and grad_norm equal the records of 3 steps from 12 to 16 bit for bit"
    losses = [float(line.split()[0]) for line in told if re.match(r" *\S+  row \d+  ", line)]
    assert len(losses) == 20 and losses == sorted(losses, reverse=True)
    mine, theirs = (
        read_record(folder / "checkpoints" / "16") for folder in (tmp_path / "new", run)
    )
    assert mine["leaves"] == theirs["leaves"]
    # the same run continues
    resume.check(
        mine,
        workdir.read_config(tmp_path / "new", allow_plugins=True),
        opened.data.fingerprint,
    )


@pytest.mark.nightly
def test_a_mixture_has_the_files_of_each_source(tmp_path):
    for name in ("a", "b"):
        lines = [
            json.dumps({"text": f"{name} tells {n}: {'and so on ' * (n % 5)}"}) for n in range(80)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    cfg = poison.config(tmp_path, steps=6)
    sources = {name: SourceConfig(path=str(tmp_path / f"{name}.jsonl")) for name in ("a", "b")}
    cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, path="", mixture=sources))
    mixed = run_history.RunHistory(cfg, open_dataset(cfg))
    seen = collections.defaultdict(set)
    for step in range(1, 7):
        for row, (places, text) in enumerate(
            zip(mixed.places(step), mixed.texts(step), strict=True)
        ):
            for place, piece in zip(places, text.split(" | "), strict=True):
                path, line = place.rsplit(":", 1)
                assert piece in Path(path).read_text().splitlines()[int(line) - 1]
                seen[place].add((step, row))
    place = next(place for place in seen if "b.jsonl" in place)
    assert set(mixed.saw(place, 6)) == seen[place]
    with pytest.raises(ConfigError, match="not in the training text"):
        list(mixed.saw("no such words", 6))


def test_misuse_is_one_sentence(run, tmp_path, capsys):
    assert "the run has the steps 1 to 16" in refused(
        capsys, "replay", "--workdir", run, "--at", "17"
    )
    shutil.copytree(run, tmp_path / "stopped")
    lines = [
        line
        for line in (run / "metrics.jsonl").read_text().splitlines()
        if json.loads(line)["step"] <= 12
    ]
    (tmp_path / "stopped" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    said = refused(capsys, "replay", "--workdir", tmp_path / "stopped", "--at", "15")
    assert said == "error: --at=15: the last step in metrics.jsonl is 12; name one that was taken."
    assert "the run has the steps 1 to 16" in refused(
        capsys, "steps", "--workdir", run, "--at", "17"
    )
    assert "--at or --document is missing" in refused(capsys, "steps", "--workdir", run)
    assert "exists already" in refused(
        capsys, "replay", "--workdir", run, "--at", "3", "--output", tmp_path
    )
    assert "no run has written a config.json" in refused(
        capsys, "steps", "--workdir", tmp_path, "--at", "3"
    )
    assert "no such directory" in refused(
        capsys, "steps", "--workdir", tmp_path / "none", "--at", "3"
    )


@pytest.mark.nightly
def test_a_bad_line_is_found_end_to_end(tmp_path, capsys):
    with pytest.raises(
        RunError,
        match=r"not finite.*\d+: .*;.*its rows.*text.jsonl:\d+, .* and 16 more",
    ) as ended:
        flaxformer_lite.run(poison.config(tmp_path, steps=16), tmp_path / "run")
    step = int(
        re.search(r"replay --workdir \S+ --at (\d+) shows the loss of each", str(ended.value))[1]
    )
    capsys.readouterr()
    *_, title, first, _ = said(capsys, "replay", "--workdir", tmp_path / "run", "--at", step).split(
        "\n", 6
    )[:7]
    assert title.startswith("rows by their loss")
    assert first.split()[0] == "nan" and f"text.jsonl:{poison.LINE}" in first


def test_left_out_updates_are_recorded_with_their_rows(run, opened):
    records = metrics.read(run / "metrics.jsonl")
    spikes = [record for record in records if record["split"] == "spike"]
    assert [record["step"] for record in spikes] == sorted(
        {step for step, _ in opened.saw(f"text.jsonl:{poison.LINE}", 16)}
    )
    for record in spikes:
        assert record["skipped"] == 1 and "loss" not in record
        assert record["rows"] == [", ".join(places) for places in opened.places(record["step"])]
    assert all(math.isfinite(record["loss"]) for record in records if record["split"] == "train")
    assert sum(
        record["skipped"] for record in records if record["split"] == "train"
    ) == pytest.approx(len(spikes) / 3)
    report = (run / "report.html").read_text()
    assert "skipped updates" in report and f"{len(spikes)}, at step {spikes[0]['step']}" in report


def test_changed_text_is_refused(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    text = tmp_path / "text.jsonl"
    text.write_text((run.parent / "text.jsonl").read_text().replace("from 16:", "From 16:"))
    moved = dataclasses.replace(
        run_history.read_config(run, allow_plugins=True).data, path=str(text), cache=str(tmp_path)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            run_history,
            "read_config",
            lambda folder, **allowed: dataclasses.replace(
                run_history.workdir.read_config(run, **allowed), data=moved
            ),
        )
        for command in ("steps", "replay"):
            line = refused(capsys, command, "--workdir", tmp_path / "run", "--at", "3")
            assert "has changed since the run read it" in line


@pytest.mark.nightly  # of a damaged checkpoint, test_loop.py
def test_without_the_nearest_checkpoint_an_earlier_state_leads_to_the_same(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints" / "8").rglob("d/*"):
        path.write_bytes(bytes(len(path.read_bytes())))
    point = replay.before_step(tmp_path / "run", 9, allow_plugins=True)
    assert point.start == 0 and "checkpoint of step 8 cannot be read" in point.notices[0]
    assert describe_leaves(point.state) == read_record(run / "checkpoints" / "8")["leaves"]
    assert replay.compare(run, point.values) == {3: 0.0, 6: 0.0}
    other = {
        step: {**values, "loss": values["loss"] * 1.001} for step, values in point.values.items()
    }
    assert replay.compare(run, other) == pytest.approx({3: 1e-3, 6: 1e-3}, rel=1e-3)


def test_a_workdir_that_has_appeared_meanwhile_is_left_alone(tmp_path):
    with pytest.raises(ConfigError, match="exists already; name a new folder"):
        replay.save(None, None, tmp_path)
