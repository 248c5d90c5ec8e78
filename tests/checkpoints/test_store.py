import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from flaxformer_lite import sharding
from flaxformer_lite.checkpoints import record
from flaxformer_lite.checkpoints.digest import digest
from flaxformer_lite.checkpoints.manager import CheckpointError, Checkpoints
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.storage.objects import Objects
from flaxformer_lite.storage.stores import StorageError


def tree(scale=1, **more):
    kernel = scale * jnp.arange(64 * 128, dtype=jnp.float32).reshape(64, 128)
    return {
        "kernel": kernel,
        "half": {"bias": kernel[0].astype(jnp.bfloat16)},
        "step": jnp.asarray(scale),
        **more,
    }


def target():
    alone = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=alone), tree())


@pytest.fixture
def objects(bucket, request):
    """Checkpoints of steps 2 and 3, of which a tree's scale is its step; 1 was deleted."""
    at = f"{bucket.url}/{re.sub(r'[^a-z]', '-', request.node.name)}"
    with Checkpoints(at, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, tree(step), {"note": f"step {step}"})
    bucket.seen.clear()
    return Objects(at)


def restore(at, want=None):
    with Checkpoints(at.url, keep=2) as checkpoints:
        return checkpoints.restore(lambda record: want or target())


def test_newest_comes_back_bit_for_bit_and_older_ones_are_gone(objects):
    got = restore(objects)
    assert (got.step, got.meta["note"], got.notices) == (3, "step 3", [])
    assert digest(got.state) == digest(tree(3)) != digest(tree(2))
    assert {name.split("/")[0] for name in objects.names()} == {"2", "3"}


def test_written_from_one_mesh_and_read_onto_another(objects):
    mesh = sharding.build_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    rows = NamedSharding(mesh, P("fsdp"))
    pieces = NamedSharding(mesh, P("fsdp", "tensor"))
    with Checkpoints(objects.url, keep=2) as checkpoints:
        checkpoints.save(4, tree(4, kernel=jax.device_put(tree(4)["kernel"], pieces)), {})
    want = target() | {"kernel": jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=rows)}
    got = restore(objects, want)
    assert got.step == 4 and got.state["kernel"].sharding.spec == P("fsdp")
    assert digest(got.state) == digest(tree(4))


def test_one_without_its_record_is_none_and_is_swept(objects):
    for name in objects.names():
        if name.startswith("3/state/"):
            objects.write(f"4{name[1:]}", objects.read(name))
    assert restore(objects).step == 3
    assert not any(name.startswith("4/") for name in objects.names())


def test_a_flipped_bit_is_told_with_its_leaf_and_its_object_and_the_step_can_be_saved_again(
    objects,
):
    names = [name for name in objects.names() if name.startswith("3/")]
    name = max(names, key=lambda name: len(objects.read(name)))
    content = bytearray(objects.read(name))
    content[content.index(b"\x28\xb5\x2f\xfd") + 40] ^= 1  # in the first array, compressed
    objects.write(name, bytes(content))
    got = restore(objects)
    assert got.step == 2 and digest(got.state) == digest(tree(2))
    said = r"step 3 is damaged.*left in .*/3 without its record, continuing from step 2"
    assert re.search(said, got.notices[0])
    with Checkpoints(objects.url, keep=2) as checkpoints:
        assert checkpoints.latest_step == 2
        checkpoints.save(3, tree(3), {})
    assert restore(objects).step == 3


def test_a_changed_content_is_found_by_its_digest_and_its_object_is_named(objects):
    told = {**record.read_record(objects.below("3")), "step": 4}
    with Checkpoints(objects.url, keep=2) as checkpoints:
        checkpoints.save(4, tree(3, kernel=tree(3)["kernel"].at[5, 7].add(1)), {})
    objects.write("4/meta/metadata", json.dumps(record.seal_record(told)).encode())
    got = restore(objects)
    assert got.step == 3
    said = r"content of kernel does not match .* lies in state/ocdbt.process_0/d/\w+"
    assert re.search(said, got.notices[0])


def test_a_missing_object_is_damage_and_a_store_that_refuses_is_none(objects, bucket):
    bucket.fail(403, times=3, on="GET .*metadata")
    said = r"log in .*(gcloud auth|aws configure).*bucket"
    with pytest.raises(StorageError, match=said):
        restore(objects)
    bucket.faults.clear()
    objects.below("3/state/ocdbt.process_0/d").delete_all()
    assert restore(objects).step == 2


def test_a_copy_on_a_disk_continues_there(objects, tmp_path):
    for name in objects.names():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(objects.read(name))
    with Checkpoints(Path(tmp_path), keep=2) as checkpoints:
        got = checkpoints.restore(lambda record: target())
        checkpoints.save(4, tree(4), {})
    assert (got.step, digest(got.state)) == (3, digest(tree(3)))


def test_a_save_that_fails_in_the_background_is_told_of_its_own_step(objects, bucket):
    with Checkpoints(objects.url, keep=2) as checkpoints:
        bucket.fail(403, on="(POST|PUT) ")
        checkpoints.save(4, tree(4), {})
        with pytest.raises(CheckpointError, match=r"step 4.*not written.*last.*checkpoint.*3"):
            checkpoints.wait()
    assert restore(objects).step == 3
