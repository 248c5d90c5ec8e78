"""Digests of the contents of arrays, computed on the devices, and equal on every mesh.

A cryptographic hash needs the bytes in order and in one place. Here each 32-bit word is scrambled
together with its position, and the results are added modulo 2^32: the sum may run in any order over
any shards, so it is one reduction on the devices. Scrambling is one-to-one in the word, so a single
changed word is always detected; several are missed with a probability of 2^-64.
"""

import hashlib
from collections.abc import Iterable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.types import Array

Leaves = dict[str, list]
Words = TypeVar("Words", np.ndarray, jax.Array)
# Any two different numbers would do, but all checkpoints were written with these.
SEEDS = (0x9E3779B9, 0x85EBCA77)  # one per sum
MAX_HOST_BYTES = (
    1 << 20
)  # bytes; smaller arrays are summed on the host, to compile nothing for them


def describe_leaves(tree: object) -> Leaves:
    """Maps the path of each leaf to [dtype, shape, digest].

    Args:
      tree: arrays, on devices or of numpy, or ShapeDtypeStructs, whose digest is "". All processes
        must call this for arrays that are sharded over several of them.
    """
    described = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        digest = ""
        if isinstance(leaf, (jax.Array, np.ndarray)):
            digest = _digest(leaf)
        described[path_of(keys)] = [str(leaf.dtype), list(leaf.shape), digest]
    return described


def digest(tree: object) -> str:
    """Computes one digest over all leaves, equal if two trees are equal bit for bit."""
    described = repr(sorted(describe_leaves(tree).items()))
    return hashlib.sha256(described.encode()).hexdigest()


def _digest(leaf: jax.Array | np.ndarray) -> str:
    sums: Iterable[Array]
    if leaf.nbytes < MAX_HOST_BYTES and getattr(leaf, "is_fully_addressable", True):
        flat = np.ascontiguousarray(leaf).reshape(-1)
        words = flat.view(f"uint{_bits(leaf.dtype)}").astype(np.uint32)
        sums = _sums(words, np.arange(words.size, dtype=np.uint32))
    else:
        # np.asarray waits, so that the next program starts after this one, as in evaluate.py.
        sums = np.asarray(_on_devices(leaf))
    return "".join(f"{int(s):08x}" for s in sums)


@jax.jit
def _on_devices(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    # Types wider than 32 bits gain an axis.
    words = jax.lax.bitcast_convert_type(x, f"uint{_bits(x.dtype)}").astype(jnp.uint32)
    position = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        position = position * jnp.uint32(size) + jax.lax.broadcasted_iota(
            jnp.uint32, words.shape, axis
        )
    return jnp.stack(_sums(words, position))


def _sums(words: Words, position: Words) -> list[Words]:
    """Computes one uint32 per seed; `position` is the index of each word modulo 2^32."""
    sums = []
    for seed in SEEDS:
        scrambled = _scramble(words ^ _scramble(position + np.uint32(seed)))
        sums.append(scrambled.sum(dtype=np.uint32))
    return sums


def _scramble(h: Words) -> Words:
    """Applies the finalizer of MurmurHash3: one-to-one, and each input bit affects all output bits.

    Reference: Appleby, "MurmurHash3" (2011), fmix32.
    """
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
    return h ^ (h >> np.uint32(16))


def _bits(dtype: DTypeLike) -> int:
    return min(32, 8 * np.dtype(dtype).itemsize)
