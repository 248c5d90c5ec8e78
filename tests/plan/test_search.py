import dataclasses

import pytest

from flaxformer_lite.config import choices
from flaxformer_lite.plan import planner, report, search, topology
from tests.plan.test_planner import config

MACHINE = topology.parse("v5e-4")


@pytest.fixture(scope="module")
def cfg():
    tiny = config("llama_tiny")
    return dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, scan=True))


@pytest.fixture(scope="module")
def found(cfg):
    said = []
    return search.search(cfg, MACHINE, compiles=2, compiler=False, say=said.append), said


@pytest.mark.nightly
def test_what_fits_is_ranked_by_speed_and_reproduces(cfg, found):
    ranked, said = found
    speeds = [round(search.speed(one.plan), -1) for one in ranked]
    assert len(ranked) > 5 and speeds == sorted(speeds, reverse=True) and "combinations" in said[0]
    assert {one.overrides["model.remat"] for one in ranked} == set(choices.REMATS)
    best = ranked[0]
    assert all(one.plan.memory.total <= search.CLEARANCE * one.plan.available for one in ranked)
    again = planner.make(search.changed(cfg, best.overrides), MACHINE, compiler=False)
    assert (again.seconds, again.memory) == (best.plan.seconds, best.plan.memory)
    shapes = [
        tuple(v for k, v in one.overrides.items() if not k.startswith("train.")) for one in ranked
    ]
    assert len(set(shapes)) == len(shapes)
    text = dict(report.ranking(ranked))["1"]
    assert f"--config.mesh.fsdp={best.overrides['mesh.fsdp']} " in text and "analytic" in text


@pytest.mark.nightly
def test_only_as_many_compilations_as_asked_for_and_what_does_not_fit_is_left_out(
    monkeypatch, cfg, found
):
    made = []

    def make(cfg, machine, compiler=True):
        made.append(cfg)
        plan = found[0][0].plan
        return dataclasses.replace(plan, fits=len(made) == 2, compile_seconds=1.0)

    monkeypatch.setattr(planner, "make", make)
    monkeypatch.setattr(search.aot, "missing", lambda machine: "")
    said = []
    ranked = search.search(cfg, MACHINE, compiles=3, say=said.append)
    wide = [cfg.mesh.fsdp > 1 and 256 * cfg.mesh.fsdp > cfg.model.d_model for cfg in made]
    # those that the TPU's compiler would reduce whole come last
    assert wide == sorted(wide) and not wide[0]
    assert (
        len(made) == 3
        and len(ranked) == 1
        and said[1].startswith("compiling 1 of 3: --config.mesh.data=")
    )


@pytest.mark.nightly
def test_a_machine_too_small_finds_nothing(cfg, monkeypatch):
    monkeypatch.setattr(search, "TENSOR", (1,))
    monkeypatch.setattr(search, "BATCH", (1,))
    small = dataclasses.replace(MACHINE, chip=dataclasses.replace(MACHINE.chip, memory=1e6))
    assert search.search(cfg, small, compiles=1, compiler=False, say=lambda line: None) == []
