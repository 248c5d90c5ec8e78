"""Steps that compile in the background are the same steps; what goes wrong is told, and the
unneeded never begins."""

import dataclasses
import threading
import types

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from flaxformer_lite import sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.runs.start import precompile
from flaxformer_lite.runtime.processes import ALONE, differences
from flaxformer_lite.training import program
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    cfg = tiny_runs.config(tmp_path_factory.mktemp("text"), mesh=MeshConfig(data=1))
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=384))
    return program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))


def test_a_step_compiled_ahead_is_the_same_step(plain):
    batch = sharding.place_batch(
        jax.tree.map(lambda x: np.ones(x.shape, x.dtype), plain.batch), plain.mesh
    )
    _, due = plain.train_step(tiny_runs.any_state(plain), batch)
    with precompile.precompile(plain, "train_step") as ready:
        assert ready.eval_step is plain.eval_step and ready.train_step is not plain.train_step
        state, metrics = ready.train_step(tiny_runs.any_state(ready), batch)
    assert {n: float(x) for n, x in metrics.items()} == {n: float(x) for n, x in due.items()}
    assert int(ready.train_step(state, batch)[0].step) == 2


class Slow:
    """Stands for a jitted function: traced here, compiled elsewhere, until it may end with what it
    is told to end with."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def lower(self, *_):
        assert threading.current_thread() is threading.main_thread()
        return self

    def compile(self):
        assert threading.current_thread() is not threading.main_thread()
        self.begun.set()
        assert self.may_end.wait(600)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return lambda *_: self.outcome


def test_it_compiles_before_it_is_called_and_the_unneeded_never(plain):
    first = Slow("evaluated")
    second = Slow("trained")
    toy = dataclasses.replace(plain, eval_step=first, train_step=second)
    with precompile.precompile(toy, "eval_step", "train_step") as ready:
        assert first.begun.wait(600)
    first.may_end.set()
    assert ready.eval_step(None, plain.batch) == "evaluated"
    assert not second.begun.is_set()


def test_what_fails_to_compile_is_raised_by_the_call(plain):
    step = Slow(ValueError("no such shape"))
    step.may_end.set()
    toy = dataclasses.replace(plain, train_step=step)
    said = pytest.raises(ValueError, match="no such shape")
    with precompile.precompile(toy, "train_step") as ready, said:
        ready.train_step(None, plain.batch)


def test_what_is_made_beside_begins_before_it_is_asked_for_and_is_not_held():
    begun = threading.Event()
    states = iter(("state", "another"))

    def make():
        begun.set()
        return next(states)

    with precompile.run_in_thread(make) as state:
        assert begun.wait(600)
        assert state() == "state"
        with pytest.raises(IndexError):
            state()


def test_what_fails_to_be_made_is_raised_by_the_call():
    def make():
        raise ValueError("no such weights")

    with precompile.run_in_thread(make) as state, pytest.raises(ValueError, match="no such"):
        state()


def test_under_pmap_the_program_stays_as_it_is(plain):
    mapped = dataclasses.replace(
        plain, cfg=dataclasses.replace(plain.cfg, mesh=MeshConfig(data=1, mode="pmap"))
    )
    with precompile.precompile(mapped, "train_step") as ready:
        assert ready is mapped


class Group:
    """Stands for several processes: what each was to agree on."""

    def __init__(self):
        self.alone = False
        self.facts = []

    def agree(self, topic, facts):
        self.facts.append([topic, facts])


def test_processes_compare_what_their_programs_exchange():
    group = Group()

    def compare(size, over):
        mesh = sharding.build_mesh(MeshConfig(data=2, tensor=2))
        options = {"mesh": mesh, "in_specs": P(), "out_specs": P(), "check_vma": False}
        total = jax.shard_map(lambda x: jax.lax.psum(x, over), **options)
        shape = jax.ShapeDtypeStruct((size,), np.float32)
        precompile._check_same(group, "train_step", jax.jit(total).lower(shape).compile())

    for size, over in ((4, "data"), (4, "data"), (8, "data"), (4, "tensor")):
        compare(size, over)
    first, same, larger, across = group.facts
    assert not differences([first, same])
    for other in (larger, across):
        assert "train_step as compiled" in differences([first, other])
    precompile._check_same(ALONE, "train_step", None)


PROGRAM = """%async_collective_fusion.2 (p: f32[32]) -> f32[64] {{
  ROOT %g = f32[64] all-gather(%p), channel_id=5, replica_groups={{{{0,1}}}}, dimensions={{0}}
}}
ENTRY %main (q: f32[32]) -> f32[64] {{
  ROOT %b = f32[64] fusion(%q), kind=kCustom, calls=%async_collective_fusion.2, \
metadata={{source_file="{folder}/step.py"}}
}}"""


def test_where_the_code_lies_is_no_difference_of_a_product_that_carries_an_exchange():
    group = Group()
    for folder in ("/home/one", "/home/two"):
        text = PROGRAM.format(folder=folder)
        compiled = types.SimpleNamespace(as_text=lambda text=text: text)
        precompile._check_same(group, "train_step", compiled)
    assert not differences(group.facts)
