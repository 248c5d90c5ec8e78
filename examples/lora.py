"""LoRA on a frozen base, written outside the package: low-rank additions to attention's queries and
values.

    flaxformer_lite train --config=gpt2_tiny --workdir=runs/lora --config.train.init_from=DIR \
        --config.model.mixer.name=examples.lora:LoraConfig --config.model.mixer.rank=8 \
        --config.optimizer.freeze="('^(?!.*lora_)',)"

DIR holds published weights or is the workdir of another run. The second factor starts at zero, so
the model starts out equal to the base, which has no gradient and no optimizer state.

Reference: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1
  (arXiv:2106.09685).
"""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite import Attention, AttentionConfig
from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.parts import MixerConfig


@dataclass(frozen=True, kw_only=True)
class LoraConfig(MixerConfig):
    """The model's own attention, with `alpha / rank * x A B` added to the projections of
    `targets`."""

    name: ClassVar[str] = "attention"
    added: ClassVar[tuple[str, ...]] = (r"attention/lora_",)

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("query", "value")
    # Inside a model, the attention that this one wraps.
    base: AttentionConfig | None = field(default=None, metadata={"internal": True})

    def __post_init__(self):
        if self.rank < 1:
            raise ConfigError(f"rank={self.rank}: must be at least 1.")

    def for_model(self, standard):
        return dataclasses.replace(self, base=standard)

    def module(self, execution, *, causal, name=None):
        return LoraAttention(self.base, execution, causal, lora=self, name=name)

    def partition_rules(self):
        return (*self.base.partition_rules(), (r"attention/lora_\w+$", ()))

    def prepare(self, context, x_BTD, execution, **options):
        return self.base.prepare(context, x_BTD, execution, **options)

    def init_cache(self, *sizes):
        return self.base.init_cache(*sizes)


class LoraAttention(Attention):
    """Attention with a low-rank part added to its projections."""

    lora: LoraConfig | None = None

    def project(self, name: str, equation: str, x: jax.Array, width: int = 0) -> jax.Array:
        y = super().project(name, equation, x, width)
        if name not in self.lora.targets:
            return y
        rank = self.lora.rank
        dtype = jnp.dtype(self.execution.param_dtype)
        a_DR = self.param(
            f"lora_{name}_a", nn.initializers.he_uniform(), (x.shape[-1], rank), dtype
        )
        b_RO = self.param(
            f"lora_{name}_b", nn.initializers.zeros, (rank, y.shape[-2] * y.shape[-1]), dtype
        )
        added = (x @ a_DR.astype(x.dtype)) @ b_RO.astype(x.dtype)
        return y + (self.lora.alpha / rank) * added.reshape(y.shape)
