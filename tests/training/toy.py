"""A linen model and an objective of a few lines, so that the trainer is tested without the
library's own models."""

import dataclasses
import functools

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.nn.functions.sharding import UNSHARDED, ActivationSharding
from flaxformer_lite.objectives import LossSums, Objective

VOCAB = 32
WIDTH = 16
LENGTH = 8
RULES = (
    (r"embed/embedding$", (("tensor", "fsdp"), None)),
    (r"up/kernel$", ("fsdp", "tensor")),
    (r"down/kernel$", ("tensor", "fsdp")),
    (r"(bias|scale)$", ()),
)


@flax.struct.dataclass
class Logits:
    logits: jax.Array


class Toy(nn.Module):
    dropout: float = 0.0
    sharding: ActivationSharding = UNSHARDED

    @nn.compact
    def __call__(self, input_ids):
        embed = nn.Embed(VOCAB, WIDTH, name="embed")
        x_BTD = self.sharding.constrain(embed(input_ids), "BTD")
        h_BTF = self.sharding.constrain(
            jax.nn.gelu(nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm(name="norm")(x_BTD))), "BTF"
        )
        h_BTF = nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(h_BTF)
        x_BTD = x_BTD + nn.Dense(WIDTH, name="down")(h_BTF)
        return Logits(jnp.einsum("BTD,VD->BTV", x_BTD, embed.embedding))

    def features(self, input_ids):
        return self(input_ids)


@dataclasses.dataclass(frozen=True)
class NextToken(Objective):
    def make_example(self, records, index, rng):
        raise NotImplementedError

    def loss(self, outputs, targets, *, chunks):
        logits_BTV = outputs.logits
        nll_BT = jax.nn.logsumexp(logits_BTV, axis=-1) - jnp.take_along_axis(
            logits_BTV, targets["labels"][..., None], axis=-1
        ).squeeze(-1)
        right_BT = (jnp.argmax(logits_BTV, -1) == targets["labels"]).astype(jnp.float32)
        weight = jnp.sum(targets["weights"])
        right = jnp.sum(right_BT * targets["weights"])
        loss = jnp.sum(nll_BT * targets["weights"])
        return LossSums({"weights": loss}, {"weights": weight}, {"accuracy": (right, weight)})


def features(model):
    def apply(params, inputs, key):
        rngs = {} if key is None else {"dropout": key}
        return model.apply({"params": params}, **inputs, rngs=rngs, method="features"), {}

    return apply


def batch(rows, seed=0):
    """Counting modulo VOCAB with random starts and random weights: learnable, and uneven over
    rows."""
    rng = np.random.default_rng(seed)
    ids = (rng.integers(0, VOCAB, (rows, 1)) + np.arange(LENGTH + 1)) % VOCAB
    weights = rng.integers(0, 2, (rows, LENGTH)).astype(np.float32)
    inputs = {"input_ids": ids[:, :-1].astype(np.int32)}
    return {
        "inputs": inputs,
        "targets": {"labels": ids[:, 1:].astype(np.int32), "weights": weights},
    }


@functools.partial(jax.jit, static_argnums=(0, 1))
def init(model=None, seed=0):
    return (model or Toy()).init(jax.random.key(seed), jnp.zeros((1, LENGTH), jnp.int32))["params"]
