import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from flaxformer_lite import sharding
from flaxformer_lite.checkpoints import digest
from flaxformer_lite.config import MeshConfig

DTYPES = ("float32", "bfloat16", "float16", "int32", "uint8", "int8", "bool", "float8_e4m3fn")


def content(x):
    return digest.describe_leaves({"x": x})["x"][2]


def random(dtype, shape=(8, 6, 4)):
    bits = np.random.default_rng(0).integers(
        0, 2, (*shape, np.dtype(dtype).itemsize), np.uint8
    ) * np.uint8(37)
    return np.ascontiguousarray(bits % 2 if dtype == "bool" else bits).view(dtype).reshape(shape)


def by_hand(x):
    """The definition, a word at a time, in Python's integers."""

    def scramble(h):
        h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
        h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
        return h ^ h >> 16

    raw = x.tobytes()
    width = min(4, x.dtype.itemsize)
    words = [int.from_bytes(raw[i : i + width], "little") for i in range(0, len(raw), width)]
    sums = (
        sum(scramble(w ^ scramble((i + seed) % 2**32)) for i, w in enumerate(words))
        for seed in digest.SEEDS
    )
    return "".join(f"{s % 2**32:08x}" for s in sums)


@pytest.mark.parametrize("dtype", DTYPES)
def test_on_the_host_and_on_devices_as_defined(dtype, monkeypatch):
    x = random(dtype)
    assert content(x) == content(jnp.asarray(x)) == by_hand(x)
    monkeypatch.setattr(digest, "MAX_HOST_BYTES", 0)
    assert content(jnp.asarray(x)) == by_hand(x)


def test_scalars_and_nothing(monkeypatch):
    assert content(np.full((), 3, np.float32)) == by_hand(np.full((), 3, np.float32))
    assert content(jnp.zeros((0, 3))) == "0" * 16
    described = digest.describe_leaves({"x": jax.ShapeDtypeStruct((2,), jnp.float32)})
    assert described == {"x": ["float32", [2], ""]}


@pytest.mark.parametrize(
    "spec", [P(), P("fsdp", "tensor"), P("tensor", None, ("data", "fsdp")), P(None, "data")]
)
def test_the_same_however_the_array_is_laid_out(spec, monkeypatch):
    monkeypatch.setattr(digest, "MAX_HOST_BYTES", 0)
    mesh = sharding.build_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    x = random("float32")
    assert content(jax.device_put(x, NamedSharding(mesh, spec))) == by_hand(x)


def test_every_bit_matters_and_so_does_the_place():
    x = random("float32", (3, 5))
    seen = {content(x)}
    for bit in range(8 * x.nbytes):
        raw = bytearray(x.tobytes())
        raw[bit // 8] ^= 1 << bit % 8
        seen.add(content(np.frombuffer(bytes(raw), np.float32).reshape(x.shape)))
    assert len(seen) == 1 + 8 * x.nbytes
    assert content(x[::-1]) not in seen and content(x.T) not in seen
