"""What a run's steps saw and computed is found again from its workdir, bit for bit, and the workdir stays as it was."""

import contextlib
import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from flaxformer_lite import __main__ as door
from flaxformer_lite.checkpoints.digest import describe
from flaxformer_lite.checkpoints.manager import read_record
from flaxformer_lite.training import loop, past, replay
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Sixteen steps and two epochs, with checkpoints of steps 8 and 16."""
    folder = tmp_path_factory.mktemp("replay")
    cfg = tiny_runs.config(
        folder, train={"steps": 16, "batch_size": 80, "log_every": 3, "checkpoint_every": 8, "keep": 2}
    )
    loop.run(cfg, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def opened(run):
    return past.open_past(run)


def files_of(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()}


def said(capsys, *args):
    door.main(list(map(str, args)))
    return capsys.readouterr().out


def refused(capsys, *args):
    with pytest.raises(SystemExit):
        door.main(list(map(str, args)))
    return capsys.readouterr().err.splitlines()[-1]


def test_rows_are_those_of_the_batches(opened):
    cfg = opened.cfg
    assert 16 * cfg.train.batch_size > opened.data.num_examples, "more than an epoch, so that a second packing is read"
    with contextlib.closing(opened.data.batches(batch_size=cfg.train.batch_size, seed=cfg.seed)) as batches:
        for step in range(1, cfg.train.steps + 1):
            seen = next(batches)["inputs"]["input_ids"]
            due = [np.concatenate(records.row(row)) for records, row in opened.rows(step)]
            assert all((ids[: len(own)] == own[: len(ids)]).all() for ids, own in zip(seen, due, strict=True))


def test_a_line_leads_to_every_step_that_saw_it(run, opened, capsys):
    lines = [f"{opened.cfg.data.path}:{number}" for number in (17, 50)]
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


@pytest.mark.parametrize(("step", "start"), [(16, 8), (8, 0)])
def test_a_step_again_is_the_same_bit_for_bit(run, step, start):
    before = files_of(run)
    moment = replay.before_step(run, step)
    assert (moment.start, list(moment.values)) == (start, list(range(start + 1, step)))
    state, values = replay.take(moment)
    gaps = replay.compare(run, {**moment.values, step: values})
    assert set(gaps) == {n for n in (3, 6, 9, 12, 15, 16) if start < n - (n != 16) * 2 and n <= step} and not any(
        gaps.values()
    )
    if (run / "checkpoints" / str(step)).exists():
        assert describe(state) == read_record(run / "checkpoints" / str(step))["leaves"]
    assert files_of(run) == before
    assert replay.compare(
        run, {n: {**v, "loss": v["loss"] * 1.001} for n, v in moment.values.items()}
    ) == pytest.approx({n: 1e-3 for n in gaps if n != step}, rel=1e-3)


def test_the_losses_of_rows_make_the_loss_of_the_batch(run):
    moment = replay.before_step(run, 9)
    rows = replay.row_losses(moment)
    whole = moment.experiment.eval_step(moment.state.params, moment.batch)[0].mean()
    weights = np.asarray(moment.batch["targets"]["weights"]).sum(axis=1)
    assert len(set(rows.tolist())) > 40
    assert (rows * weights).sum() / weights.sum() == pytest.approx(float(whole), rel=1e-5)


def test_replay_writes_a_checkpoint_that_continues(run, tmp_path, capsys):
    told = said(capsys, "replay", "--workdir", run, "--at", "12", "--output", tmp_path / "new")
    assert "from checkpoint 8\nloss and grad_norm equal the records of step 12 bit for bit" in told
    losses = [float(line.split()[0]) for line in told.splitlines() if "  row " in line]
    assert len(losses) == 80 and losses == sorted(losses, reverse=True)
    loop.run(past.read_config(run), tmp_path / "new")
    ends = [read_record(folder / "checkpoints" / "16")["leaves"] for folder in (run, tmp_path / "new")]
    assert ends[0] == ends[1]


def test_misuse_is_one_sentence(run, tmp_path, capsys):
    assert "the run has the steps 1 to 16" in refused(capsys, "replay", "--workdir", run, "--at", "17")
    assert "the run has the steps 1 to 16" in refused(capsys, "steps", "--workdir", run, "--at", "17")
    assert "--at or --document is missing" in refused(capsys, "steps", "--workdir", run)
    assert "is there already" in refused(capsys, "replay", "--workdir", run, "--at", "3", "--output", tmp_path)
    assert "no run has written a config.json" in refused(capsys, "steps", "--workdir", tmp_path, "--at", "3")
    assert "no such directory" in refused(capsys, "steps", "--workdir", tmp_path / "none", "--at", "3")


def test_changed_text_is_refused(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    text = tmp_path / "text.jsonl"
    text.write_text((run.parent / "text.jsonl").read_text().replace("from 16:", "From 16:"))
    moved = dataclasses.replace(past.read_config(run).data, path=str(text), cache=str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            past, "read_config", lambda folder: dataclasses.replace(past.workdir.read_config(run), data=moved)
        )
        for command in ("steps", "replay"):
            line = refused(capsys, command, "--workdir", tmp_path / "run", "--at", "3")
            assert "has changed since the run read it" in line


def test_a_damaged_checkpoint_is_passed_over(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints" / "8").rglob("d/*"):
        path.write_bytes(bytes(len(path.read_bytes())))
    moment = replay.before_step(tmp_path / "run", 9)
    assert moment.start == 0 and "checkpoint of step 8 cannot be read" in moment.notices[0]
    assert jax.tree.leaves(moment.state)
