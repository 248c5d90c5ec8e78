"""Newer libraries are not held back, and once a process named; a process that compiles many
programs has memory maps left for the next one."""

import importlib.metadata
import logging
import subprocess
import sys

import jax
import pytest

from flaxformer_lite import first_model

# Each program is held by its function, as in a notebook or a comparison of models.
COMPILE = """
import pathlib
import sys

import flaxformer_lite
from flaxformer_lite import first_model

programs, parts, granted = sys.argv[1:]
first_model.GRANTED = pathlib.Path(granted)

import jax
import jax.numpy as jnp

assert not first_model.bound_programs.cache_info().currsize, "importing changes nothing"
flaxformer_lite.build_model("gpt2", "tiny")
x_NN = jnp.ones((2, 2))
granted = int(first_model.GRANTED.read_text())
kept = []
for number in range(int(programs)):
    def sort(x_NN, number=number):
        for _ in range(int(parts)):
            x_NN = jnp.sort(x_NN @ x_NN + number)
        return x_NN
    kept.append(jax.jit(sort))
    kept[-1](x_NN)
    count = first_model.count_maps()
    assert count < granted, (number, count)
first = kept[0]
assert first(x_NN).shape == (2, 2)
"""


@pytest.fixture
def installed(monkeypatch):
    found = {"jax": "0.12.3", "flax": "0.12.99"}
    monkeypatch.setattr(importlib.metadata, "version", found.__getitem__)
    first_model.notice_untested.cache_clear()
    yield found
    first_model.notice_untested.cache_clear()


def test_tested_versions_are_passed_in_silence(installed, caplog):
    with caplog.at_level(logging.WARNING):
        first_model.notice_untested()
    assert not caplog.records


@pytest.mark.parametrize("version", ["0.13.0", "1.0", "0.13.0.dev20270101"])
def test_a_newer_one_is_named_once_with_the_way_back(version, installed, caplog):
    installed["jax"] = version
    with caplog.at_level(logging.WARNING):
        first_model.notice_untested()
        first_model.notice_untested()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"jax {version} is newer than 0.12")
    assert "'jax<0.13'" in record.getMessage()


@pytest.mark.nightly
# three thousand maps, and those of the system
@pytest.mark.parametrize(("programs", "parts", "granted"), [(80, 10, 3_000), (500, 60, 0)])
def test_many_programs_stay_below_the_maps_that_are_granted(tmp_path, programs, parts, granted):
    file = first_model.GRANTED
    if granted:
        file = tmp_path / "max_map_count"
        file.write_text(str(granted))
    command = [sys.executable, "-c", COMPILE, str(programs), str(parts), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def compile_with(monkeypatch, tmp_path):
    """Returns a function that compiles as many programs as the bound looks at once, at a count of
    maps, and how often programs were freed."""
    listeners = []
    freed = []
    counts = []
    file = tmp_path / "max_map_count"
    file.write_text("1000")
    monkeypatch.setattr(first_model, "GRANTED", file)
    monkeypatch.setattr(first_model, "MAPS", file)
    monkeypatch.setattr(first_model, "count_maps", lambda: counts[-1])
    monkeypatch.setattr(jax.monitoring, "register_event_duration_secs_listener", listeners.append)
    monkeypatch.setattr(jax, "clear_caches", lambda: freed.append(counts[-1]))
    first_model.bound_programs.__wrapped__()

    def compile_with(count):
        counts.append(count)
        for _ in range(first_model.COMPILATIONS_PER_COUNT):
            listeners[0](first_model.COMPILED, 0.1, fun_name="f")
            listeners[0]("/jax/core/compile/jaxpr_trace_duration", 0.1)
        return freed

    return compile_with


def test_programs_that_stay_held_do_not_free_all_others_at_each_look(compile_with):
    assert compile_with(700) == []
    assert compile_with(800) == [800], "nothing was freed: the next time is half way to the end"
    assert compile_with(890) == [800]
    assert compile_with(910) == [800, 910]


def test_other_systems_are_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(first_model, "GRANTED", tmp_path / "none")
    register = "register_event_duration_secs_listener"
    monkeypatch.setattr(jax.monitoring, register, lambda _: pytest.fail("listens"))
    first_model.bound_programs.__wrapped__()
