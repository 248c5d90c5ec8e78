"""The benchmark's own arithmetic, and one small case through the package's side of it."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import cases, memory, results, run, table

TINY = cases.Case("gpt2", "train", 8, 16, layers=1, d_model=16, heads=2, mlp_dim=32, vocab=64)


def peer(name, seconds, *, first=10.0, start=400, workers=0, step=200, value=None):
    """A peer as it is after its rounds; memory in MiB."""
    value = value or {"loss": 3.0, "flops": 4e9}
    answers = []
    for i, s in enumerate(seconds):
        memory_of = {"peak_bytes": step * table.MIB - i}
        answers.append({"seconds": s, "cpu_seconds": 2 * s, "value": value, **memory_of})
    return run.Peer(
        name,
        len(seconds),
        first={"value": value},
        answers=answers,
        matmuls=[0.2, 0.1],
        first_seconds=first,
        start_bytes=start * table.MIB,
        worker_bytes=workers * table.MIB,
    )


def measured(*peers):
    summary = run.summary(list(peers))
    for numbers in summary["peers"].values():
        numbers["versions"] = {"python": "3.1"}
    stamp = {"date": "2026-01-01", "command": "python -m benchmarks.run", "load": [0.1, 1.9]}
    return stamp | summary


def gpt():
    ours = peer(table.OURS, [2.0, 4.0, 1.0])
    theirs = peer("HF torch.compile", [3.0, 4.0, 1.2], first=25.0, start=300, workers=500, step=150)
    return measured(ours, theirs, peer("HF torch eager", [5.0]))


def test_ratios_are_of_rounds_that_were_run_one_after_the_other():
    peers = gpt()["peers"]
    ratios = peers["HF torch.compile"]["times_ours"]
    # the ratio of medians is 1.5
    assert ratios == pytest.approx({"median": 1.2, "lowest": 1.0, "highest": 1.5})
    # paired with the first round alone
    assert peers["HF torch eager"]["times_ours"]["median"] == 2.5
    assert peers[table.OURS]["seconds"] == 2.0 and peers[table.OURS]["cpu_seconds"] == 4.0
    assert peers[table.OURS]["step_bytes"] == 200 * table.MIB


def test_the_table_says_what_was_measured():
    _, _, ours, theirs, last = table.of_case("gpt_small", gpt()).splitlines()[:5]
    share = f"{2e9 / (2 * 2048**3 / 0.1):.0%}"
    figures = "2.000 | 4.00 | 1,024 | 1.00x | 10.0 s | 400 MiB | 0 MiB | 200 MiB"
    assert ours == f"| flaxformer_lite | {figures} | {share} | 3 |"
    figures = "3.000 | 6.00 | 683 | 1.20x (1.00 to 1.50) | 25.0 s | 300 MiB | 500 MiB"
    assert theirs.startswith(f"| HF torch.compile | {figures} |")
    assert last.endswith("| 1 |")


def test_what_misses_its_goal_is_in_bold():
    (row,) = table.beside_the_usual({"gpt_small": gpt()})
    assert (row["first"], row["start"], row["step"]) == (2.5, 2.0, 0.75)
    page = table.page({"machine": {"cores": "2"}, "cases": {"gpt_small": gpt()}, "start": {}})
    figures = "1.20x (1.00 to 1.50) | 1.05x | **2.50x** | 3x | 2.00x | **0.75x** | 1x"
    assert f"| gpt_small | HF torch.compile | {figures} |" in page


def test_generation_is_of_one_length_and_its_ids_are_compared():
    ours = peer(table.OURS, [1.0], value={"ids": [[1, 2], [3, 4]]})
    theirs = peer("HF torch eager", [2.5], value={"ids": [[1, 2], [3, 5]]})
    result = measured(ours, theirs)
    assert table.of_case("generate_gpt2_b8", result).splitlines()[3].endswith("| 75% | 1 |")
    theirs.first = {"value": {"ids": [[1, 2], [3]]}}
    with pytest.raises(ValueError, match="longer"):
        run.summary([ours, theirs])


def test_results_stand_beside_those_of_earlier_runs(tmp_path, monkeypatch):
    slow = {"what": "`import us`", "values": [2.0, 3.0, 1.0], "unit": " s", "most": 1.5}
    waiting = slow | {"what": "waiting", "values": [0.004], "unit": "%", "most": 0.01}
    start = gpt() | {"rows": [slow, waiting]}
    results.keep(tmp_path, "cases", "gpt_small", gpt())
    results.keep(tmp_path, "start", "imports", start)
    page = (tmp_path / "cpu.txt").read_text()
    assert "| gpt_small |" in page and (tmp_path / "cpu.png").stat().st_size > 10_000
    assert "| `import us` | **2.00 s (1.00 s to 3.00 s)** | 1.50 s |" in page
    assert "| waiting | 0.40% | 1.00% |" in page
    monkeypatch.setattr(results, "machine", lambda: {"cores": "64"})
    results.keep(tmp_path, "start", "imports", start)
    assert not json.loads((tmp_path / "cpu.json").read_text())["cases"]


@pytest.mark.parametrize("name", cases.CASES)
def test_every_case_is_measured_beside_the_usual_choice_and_peers_are_named_in_full(name):
    most = cases.CASES[name].rounds
    usual = table.USUAL[cases.CASES[name].kind]
    unasked = run.plan(name, run.PEERS, None, 99)
    assert next(iter(unasked)) == table.OURS
    assert unasked[table.OURS] == unasked[usual] == most
    assert all(1 <= rounds <= most for rounds in unasked.values())
    asked = run.plan(name, run.PEERS, ["HF Flax"], 99)
    assert asked == {table.OURS: most, "HF Flax": most}
    assert run.plan(name, [table.OURS], None, 1) == {table.OURS: 1}
    assert all(set(kind.rounds) <= set(cases.CASES) for kind in run.PEERS.values())


@pytest.mark.parametrize("name", cases.CASES)
def test_batches_are_of_the_case(name):
    case = dataclasses.replace(cases.CASES[name], vocab=100)
    batch = cases.batch(case)
    assert all(np.array_equal(x, cases.batch(case)[key]) for key, x in batch.items())
    assert batch["input_ids"].shape == (case.batch, case.length)
    if case.family == "bert":
        masked = batch["labels"] != cases.IGNORED
        assert (masked.sum(axis=1) == 20).all() and (batch["input_ids"][masked] == 2).all()


def test_a_peak_is_counted_anew():
    held = np.ones(64 * table.MIB, np.uint8)
    assert memory.peak() > held.nbytes
    high = memory.peak()
    del held
    memory.forget()
    assert memory.peak() < high - 32 * table.MIB


def test_what_lies_beside_must_be_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run.sys, "argv", ["run", f"--before={tmp_path}"])
    with pytest.raises(SystemExit):
        run.main()
    assert "no checkout of this project" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_tiny_case_is_trained_and_its_numbers_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "REST", 0)
    result = run.measure(TINY, {table.OURS: 2}, {"": run.sys.executable}, tmp_path)
    ours = result["peers"][table.OURS]
    assert len(ours["rounds"]) == 2 and ours["times_ours"]["median"] == 1 and result["flops"] > 1e6
    assert abs(ours["losses"][0] - np.log(64)) < 0.2 and ours["losses"][1] < ours["losses"][0]
    assert ours["first_seconds"] > ours["seconds"]
    assert ours["step_bytes"] > 1e8 < ours["start_bytes"]


@pytest.mark.nightly
def test_a_peer_that_fails_is_named_with_its_last_words(tmp_path):
    case = dataclasses.replace(TINY, heads=3)
    message = r"flaxformer_lite ended with 1; its last words:\n[^$]*num_heads=3"
    with pytest.raises(RuntimeError, match=message):
        run.measure(case, {table.OURS: 1}, {"": run.sys.executable}, tmp_path)


def test_a_turn_of_training_is_the_mean_of_consecutive_steps_after_one_that_does_not_count(
    monkeypatch,
):
    monkeypatch.setattr(run, "REST", 0)
    taken = iter([9.0, 1.0, 2.0, 3.0, 7.0])

    def ask(request):
        if request == "matmul":
            return {"value": {"seconds": 0.1}}
        seconds = next(taken)
        return {"seconds": seconds, "cpu_seconds": 2 * seconds, "peak_bytes": 5}

    measured = run.Peer("ours", rounds=2)
    monkeypatch.setattr(measured, "ask", ask)
    measured.turn(trains=True)
    measured.turn(trains=False)
    due = [{"seconds": s, "cpu_seconds": 2 * s, "peak_bytes": 5} for s in (2.0, 7.0)]
    assert measured.answers == due
