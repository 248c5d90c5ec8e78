"""A model of your own from the package's parts, without family or config page, in linen and in NNX.

python examples/own_model.py
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite import (
    AttentionConfig,
    LayerConfig,
    MlpConfig,
    Rope,
    Stack,
    StackConfig,
    causal,
    cross_entropy,
    to_nnx,
)

near = AttentionConfig(num_heads=4, window=8, position=Rope(base=10_000.0))
far = AttentionConfig(num_heads=4, num_kv_heads=1, position=Rope(base=160_000.0))
# every other layer looks far; the near ones have no feed-forward
layers = StackConfig(
    num_layers=4,
    pattern=(LayerConfig(mixer=far, feed_forward=MlpConfig(gated=True)), LayerConfig(mixer=near)),
)


class Bytes(nn.Module):
    """A language model of bytes."""

    @nn.compact
    def __call__(self, ids_BT: jax.Array) -> jax.Array:
        embed = nn.Embed(256, 64)
        return embed.attend(Stack(layers, causal=True)(embed(ids_BT), mask=causal()))


def loss(logits_BTV: jax.Array, ids_BT: jax.Array) -> jax.Array:
    sums = cross_entropy(logits_BTV[:, :-1], ids_BT[:, 1:])
    return sums.loss_sum / sums.weight_sum


if __name__ == "__main__":
    text = jnp.asarray([list(b"the quick brown fox jumps over it")], jnp.int32)
    params = Bytes().init(jax.random.key(0), text)["params"]
    print("linen", float(loss(Bytes().apply({"params": params}, text), text)))
    print("nnx  ", float(loss(to_nnx(Bytes(), params)(text), text)))
