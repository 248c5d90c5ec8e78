"""Masks, position encodings and inputs over which the attentions are compared."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.rotary import rotate
from flaxformer_lite.nn.functions.sharding import ActivationSharding

B = 2
T = 11
N = 4
H = 8
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0], [3] * 11], np.int32)
IN_PREFIX = np.array([[1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0], [1] + [0] * 10], bool)
KEEP = np.array([[1] * 11, [0] * 3 + [1] * 8], bool)

MASKS = {
    "none": None,
    "causal": masks.causal(),
    "window": masks.window(3),
    "packed": masks.causal() & masks.segments(SEGMENTS),
    "prefix": (masks.causal() | masks.prefix(IN_PREFIX)) & masks.padding(KEEP),
}
POSITIONS = ("nope", "t5_buckets", "alibi", "rope", "shaw")


@dataclasses.dataclass(frozen=True)
class On(ActivationSharding):
    """One device of another platform, which computes nothing here."""

    platform: str = "tpu"
    device_kind: str = "TPU v5"


def by_keywords(implementation):
    """An implementation of attentions/, called as `attention` is; other options are its own."""
    names = [field.name for field in dataclasses.fields(Arguments)]

    def attend(q, k, v, /, **options):
        args = Arguments(**{name: options.pop(name) for name in names if name in options})
        return implementation(q, k, v, args, **options)

    return attend


def heads(kv_heads, dtype=jnp.float32, length=T, seed=0):
    """q, k and v, and a direction along which to take the gradient of the output."""
    rng = np.random.default_rng(seed)
    shapes = [(B, length, n, H) for n in (N, kv_heads, kv_heads, N)]
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def tables(encoding, length=T):
    """Random arrays in place of the encoding's learned ones."""
    wanted = encoding.tables(d_model=N * H, num_heads=N, head_dim=H, max_length=length)
    rng = np.random.default_rng(1)
    return {
        name: jnp.asarray(rng.standard_normal(table.shape), jnp.float32)
        for name, table in wanted.items()
    }


def encode(q, k, position, *, bidirectional):
    """q and k turned, and the bias, as a layer makes them of a position encoding."""
    encoding = registry.resolve_class("positions", position)()
    positions = jnp.arange(q.shape[1], dtype=jnp.int32)[None]
    phase = encoding.phase(positions, H)
    if phase is not None:
        q = rotate(q, phase)
        k = rotate(k, phase)
    return (
        q,
        k,
        encoding.attention_bias(
            tables(encoding), positions, positions, bidirectional=bidirectional
        ),
    )
