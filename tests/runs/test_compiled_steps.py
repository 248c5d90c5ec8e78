"""Compiled steps are the same steps, and processes compare them."""

import dataclasses
import types

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from flaxformer_lite import sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.runs.start import compiled_steps
from flaxformer_lite.runtime.processes import ALONE, differences
from flaxformer_lite.training import program
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    cfg = tiny_runs.config(tmp_path_factory.mktemp("text"), mesh=MeshConfig(data=1))
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=384))
    return program.build(cfg, sharding.build_mesh(cfg.mesh), dummy.example(cfg))


def test_a_compiled_step_is_the_same_step(plain):
    batch = sharding.place_batch(
        jax.tree.map(lambda x: np.ones(x.shape, x.dtype), plain.batch), plain.mesh
    )
    _, due = plain.train_step(tiny_runs.any_state(plain), batch)
    ready = compiled_steps.compile_when_called(plain)
    state, metrics = ready.train_step(tiny_runs.any_state(ready), batch)
    assert {n: float(x) for n, x in metrics.items()} == {n: float(x) for n, x in due.items()}
    assert int(ready.train_step(state, batch)[0].step) == 2


def test_under_pmap_the_program_stays_as_it_is(plain):
    mapped = dataclasses.replace(
        plain, cfg=dataclasses.replace(plain.cfg, mesh=MeshConfig(data=1, mode="pmap"))
    )
    assert compiled_steps.compile_when_called(mapped) is mapped


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
        compiled_steps._check_same(group, "train_step", jax.jit(total).lower(shape).compile())

    for size, over in ((4, "data"), (4, "data"), (8, "data"), (4, "tensor")):
        compare(size, over)
    first, same, larger, across = group.facts
    assert not differences([first, same])
    for other in (larger, across):
        assert "train_step as compiled" in differences([first, other])
    compiled_steps._check_same(ALONE, "train_step", None)


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
        compiled_steps._check_same(group, "train_step", compiled)
    assert not differences(group.facts)
