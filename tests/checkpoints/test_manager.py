import json
import os
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P, SingleDeviceSharding

from flaxformer_lite import sharding
from flaxformer_lite.checkpoints.digest import describe_leaves, digest
from flaxformer_lite.checkpoints.manager import CheckpointError, Checkpoints
from flaxformer_lite.checkpoints.record import first_line, read_record, seal_record
from flaxformer_lite.config import MeshConfig


def accept_all(meta):
    pass


def tree(scale=1.0):
    kernel = scale * jax.random.normal(jax.random.key(0), (64, 128))
    return {
        "kernel": kernel,
        "half": kernel.astype(jnp.bfloat16),
        "step": jnp.asarray(int(scale), jnp.int32),
    }


def target(mesh=None, **changes):
    here = NamedSharding(mesh, P()) if mesh else SingleDeviceSharding(jax.devices()[0])
    shaped = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)  # noqa: E731
    return jax.tree.map(shaped, {**tree(), **changes})


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of steps 1, 2 and 3; a tree's scale is its step."""
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, tree(step), {"note": f"step {step}"})
    return tmp_path


def largest_file(step_folder):
    return max((p for p in step_folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def restore(folder, want=None, accept=accept_all):
    with Checkpoints(folder, keep=3) as checkpoints:

        def choose_target(record):
            accept(record)
            return want or target()

        return checkpoints.restore(choose_target)


def test_newest_comes_back_bit_for_bit_onto_another_mesh(folder):
    mesh = sharding.build_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    want = target(mesh)
    rows = NamedSharding(mesh, P("fsdp", "tensor"))
    want["kernel"] = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=rows)
    got = restore(folder, want)
    assert (got.step, got.meta["note"], got.notices) == (3, "step 3", [])
    assert got.state["kernel"].sharding.spec == P("fsdp", "tensor")
    assert digest(got.state) == digest(tree(3)) != digest(tree(2))


def truncate(step_folder):
    path = largest_file(step_folder)
    os.truncate(path, path.stat().st_size // 2)


def flip(step_folder):
    path = largest_file(step_folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def half_delete(step_folder):
    shutil.rmtree(step_folder / "state")


def half_delete_record(step_folder):
    shutil.rmtree(step_folder / "meta")


@pytest.mark.parametrize("damage", [truncate, flip, half_delete, half_delete_record])
def test_a_damaged_newest_is_set_aside_with_a_notice(folder, damage):
    damage(folder / "3")
    got = restore(folder)
    assert got.step == 2 and digest(got.state) == digest(tree(2))
    (notice,) = got.notices
    assert "step 3 is damaged (" in notice and "continuing from step 2" in notice
    aside = folder / "damaged" / "3"
    assert aside.is_dir()
    if damage is flip:
        told = re.search(r"content of .* does not match its digest; it lies in (.*?)\)", notice)
        assert aside / told[1] == largest_file(aside)
    with Checkpoints(folder, keep=3) as checkpoints:  # the step number is free again
        checkpoints.save(3, tree(3), {"note": "again"})
    assert restore(folder).meta["note"] == "again"


def test_a_changed_record_is_damage_too(folder):
    path = folder / "3" / "meta" / "metadata"
    path.write_text(path.read_text().replace("step 3", "step 4"))
    got = restore(folder)
    assert got.step == 2
    assert "meta/metadata: its content does not match its digest" in got.notices[0]


RECORDS = {
    "leaves that are a list": ({"leaves": []}, "leaves=[]: must be an object"),
    "a leaf without a shape": ({"leaves": {"kernel": ["float32"]}}, "its leaves are not described"),
    "a step that is a text": ({"step": "3"}, "step='3': must be a whole number"),
    "what only the caller knows": ({"note": None}, "its record cannot be read (TypeError"),
}


@pytest.mark.parametrize("what", RECORDS)
def test_a_record_of_another_kind_is_damage_although_its_digest_fits(folder, what):
    changes, message = RECORDS[what]
    path = folder / "3" / "meta" / "metadata"
    record = json.loads(path.read_text()) | changes
    del record["digest"]
    path.write_text(json.dumps(seal_record(record)))
    got = restore(folder, accept=lambda meta: meta["note"] + "")
    assert got.step == 2 and digest(got.state) == digest(tree(2)) and message in got.notices[0]


def test_a_pipe_is_refused_and_not_waited_for(folder):
    (folder / "3" / "_CHECKPOINT_METADATA").unlink()
    os.mkfifo(folder / "3" / "_CHECKPOINT_METADATA")
    for read in (restore, lambda folder: read_record(folder / "3")):
        with pytest.raises(CheckpointError, match=r"_CHECKPOINT_METADATA:.*device;.*remove it"):
            read(folder)


def test_a_copy_under_another_step_is_damage(folder):
    shutil.copytree(folder / "2", folder / "9")
    got = restore(folder)
    assert got.step == 3 and "it is of step 2, a copy of another checkpoint" in got.notices[0]


def test_never_starts_afresh_where_all_are_damaged(folder):
    for step in "123":
        truncate(folder / step)
    said = r"no checkpoint in .* can be restored \(step 3: .*another --workdir"
    with pytest.raises(CheckpointError, match=said):
        restore(folder)
    assert (folder / "3").is_dir()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": jnp.ones((64, 129))}, r"kernel: float32\[64, 128\] -> float32\[64, 129\]"),
        ({"half": jnp.ones((64, 128))}, r"half: bfloat16\[64, 128\] -> float32\[64, 128\]"),
        ({"extra": jnp.ones(3)}, r"extra: absent -> float32\[3\]"),
    ],
)
def test_another_model_is_refused_not_cast(folder, change, message):
    with pytest.raises(CheckpointError, match=message):
        restore(folder, target(**change))
    assert (folder / "3").is_dir()


def test_accept_is_asked_before_the_state_is_read(folder):
    def refuse(meta):
        raise ValueError(f"refused {meta['note']}")

    with pytest.raises(ValueError, match="refused step 3"):
        restore(folder, {"other": jax.ShapeDtypeStruct((1,), jnp.float32)}, refuse)


def test_leftovers_of_killed_saves_are_swept(folder):
    left = folder / "4.orbax-checkpoint-tmp"
    left.mkdir()
    assert restore(folder).step == 3
    assert not left.exists()


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write in .*choose another --workdir"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep=1)


def test_full_disk_is_told_with_the_last_good_step(folder, monkeypatch):
    full = shutil.disk_usage(folder)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    said = r"step 4: needs 0.1 MB, .* has 0.0 MB free.*last.*checkpoint.*3"
    with Checkpoints(folder, keep=3) as checkpoints, pytest.raises(CheckpointError, match=said):
        checkpoints.save(4, tree(4), {})


def test_a_failure_in_the_background_is_told_of_its_own_step(folder, monkeypatch):
    def fail():
        raise OSError(28, "No space left on device")

    with Checkpoints(folder, keep=3) as checkpoints:
        checkpoints.save(4, tree(4), {})
        checkpoints.wait()
        said = r"step 4 was not written .*No space left.*last.*checkpoint.*3"
        with monkeypatch.context() as patch, pytest.raises(CheckpointError, match=said):
            patch.setattr(checkpoints._storage._manager, "wait_until_finished", fail)
            checkpoints.save(5, tree(5), {})


def test_saving_then_overwriting_the_buffers_does_not_change_the_checkpoint(tmp_path):
    """The step donates its state: the files must hold what was saved, not what came after."""
    bump = jax.jit(lambda t: jax.tree.map(lambda x: x + jnp.ones_like(x), t), donate_argnums=0)
    state = jax.block_until_ready(bump(tree()))
    expected = describe_leaves(jax.tree.map(np.array, state))
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(1, state, {})
        for _ in range(5):
            state = bump(state)
        jax.block_until_ready(state)
    assert describe_leaves(restore(tmp_path).state) == expected


def test_a_long_reason_keeps_its_end_where_the_cause_stands():
    error = OSError("wrapped")
    path = "/folder" * 60
    error.__cause__ = ValueError(f'Error writing "{path}": No space left on device [28]\nmore')
    line = first_line(error)
    assert len(line) < 250 and line.startswith("Error writing")
    assert line.endswith("No space left on device [28]")
