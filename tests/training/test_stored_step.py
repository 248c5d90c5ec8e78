"""A stored step is loaded where all processes hold it from one start, and is the same step; else
all compile."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from flaxformer_lite import sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.runtime.processes import ALONE
from flaxformer_lite.training.start import stored_step


class Group:
    """This process and another, which answers what `other` makes of this one's number."""

    alone = False
    index = 0

    def __init__(self, other=lambda number: number):
        self.other = other

    def coordinate(self, topic, value, decision):
        return decision([value, self.other(value)])


class Counted:
    """A lowered function that counts its compilations in `done`."""

    def __init__(self, lowered, done):
        self._lowered = lowered
        self._done = done

    def __getattr__(self, name):
        return getattr(self._lowered, name)

    def compile(self):
        self._done.append(1)
        return self._lowered.compile()


@pytest.fixture
def start(tmp_path):
    """Starts a run whose step multiplies, and adds over four devices; returns how often it
    compiled."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)  # as of several processes
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "compiled"))
    mesh = sharding.build_mesh(MeshConfig(data=2, tensor=2))

    def begin(group, factor=3.0):
        def step(state, batch):
            total = jax.shard_map(
                lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
            )(batch)
            return {"w": factor * state["w"]}, total

        done = []
        shape = jax.ShapeDtypeStruct((4,), np.float32, sharding=NamedSharding(mesh, P()))
        lowered = Counted(jax.jit(step).lower({"w": shape}, shape), done)
        ready = stored_step.load_or_compile(group, "train_step", list(mesh.devices.flat), lowered)
        ones = jax.device_put(np.arange(4, dtype=np.float32), NamedSharding(mesh, P()))
        state, total = ready({"w": ones}, ones)
        np.testing.assert_array_equal(total, [2.0, 4.0])
        np.testing.assert_array_equal(state["w"], factor * np.arange(4))
        return len(done)

    begin.folder = tmp_path / "compiled"
    yield begin
    jax.config.update("jax_enable_compilation_cache", before)


def test_the_next_start_compiles_nothing(start):
    assert [start(Group()), start(Group()), start(Group())] == [1, 0, 0]
    assert [path.name.split("-")[0] for path in start.folder.iterdir()] == ["train_step"]


@pytest.mark.parametrize("number", ["", 32 * "f"], ids=["none", "foreign"])
def test_a_process_without_the_others_program_makes_all_compile_and_store_it_anew(start, number):
    assert [start(Group()), start(Group(lambda own: number)), start(Group())] == [1, 1, 0]


@pytest.mark.parametrize("at", [0, 20, -1], ids=["its start's number", "its digest", "its code"])
def test_a_damaged_program_is_compiled_anew(start, at):
    assert start(Group()) == 1
    (path,) = start.folder.iterdir()
    content = bytearray(path.read_bytes())
    number = content[: stored_step.NUMBER].hex()
    content[at] ^= 1
    path.write_bytes(content)
    assert [start(Group(lambda own: number)), start(Group())] == [1, 0]


def test_other_inputs_of_the_compiler_are_another_program(start, monkeypatch):
    assert [
        start(Group()),
        start(Group(), factor=4.0),
        start(Group(), factor=4.0),
        start(Group()),
    ] == [1, 1, 0, 0]
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--another")
    assert start(Group()) == 1
    with jax.default_matmul_precision("float32"):
        assert start(Group()) == 1


def test_another_argument_or_option_is_another_program_though_its_text_is_the_same():
    both = dict.fromkeys(("labels", "targets"), jax.ShapeDtypeStruct((4,), np.float32))
    lowered = [
        jax.jit(lambda batch: -batch["labels"]).lower(both),
        jax.jit(lambda batch: -batch["targets"]).lower(both),
        jax.jit(
            lambda batch: -batch["labels"], compiler_options={"xla_cpu_enable_fast_math": True}
        ).lower(both),
    ]
    assert len({program.as_text() for program in lowered}) == 1
    assert len({stored_step.inputs(jax.devices(), program) for program in lowered}) == 3


def test_other_places_of_tpus_or_flags_in_a_file_are_another_program(tmp_path, monkeypatch):
    class Tpu(NamedTuple):
        id: int
        coords: tuple[int, int, int]
        process_index: int = 0
        device_kind: str = "TPU v5p"
        client: Any = jax.devices()[0].client

    lowered = jax.jit(jnp.negative).lower(jax.ShapeDtypeStruct((4,), np.float32))
    found = {
        stored_step.inputs([Tpu(0, (0, 0, 0)), Tpu(1, second)], lowered)
        for second in ((1, 0, 0), (0, 1, 0))
    }
    (tmp_path / "flags").write_text("--xla_cpu_enable_fast_math=false")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    found.add(stored_step.inputs(jax.devices(), lowered))
    (tmp_path / "flags").write_text("--xla_cpu_enable_fast_math=true")
    found.add(stored_step.inputs(jax.devices(), lowered))
    assert len(found) == 4


def test_a_full_disk_ends_nothing(start, monkeypatch):
    def write(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stored_step, "write_file", write)
    assert [start(Group()), start(Group())] == [1, 1]


def test_one_process_stores_nothing(start):
    assert start(ALONE) == 1 and not start.folder.exists()
