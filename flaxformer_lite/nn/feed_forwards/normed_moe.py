"""Experts beside a dense layer, each with norms before and after it (Gemma 4)."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Execution, NormConfig, parts
from flaxformer_lite.config.rules import NotNegative
from flaxformer_lite.nn.feed_forwards.moe import Moe, MoeConfig
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.norms import Norm


@dataclass(frozen=True, kw_only=True)
class NormedMoeConfig(MoeConfig):
    """The record of a NormedMoe, whose dense layer is the shared expert.

    Attributes:
      norm_eps: added to the mean square by its norms.
    """

    norm_eps: NotNegative = 1e-6

    def module(self, execution: Execution, *, name: str | None = None) -> "NormedMoe":
        return NormedMoe(self, execution, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        return (*super().partition_rules(), (r"mlp/expert_scale$", ()))


class NormedMoe(Moe):
    """y = norm(shared(norm(x))) + norm(sum of weight * scale_e * expert_e(norm(x))).

    The router reads rms(x) / sqrt(D), with weights of its own. The layer has its norms itself, so
    that no other stands before it.
    """

    cfg: NormedMoeConfig = NormedMoeConfig()

    @nn.nowrap
    def norm_of(self, slot: str, x_BTD: jax.Array) -> jax.Array:
        norm = NormConfig(kind="rms", eps=self.cfg.norm_eps)
        return Norm(norm, self.execution, name=f"{slot}_norm")(x_BTD)

    def router_input(self, x_BTD: jax.Array) -> jax.Array:
        return self.norm_of("router", x_BTD) * x_BTD.shape[-1] ** -0.5

    def combine_weights(
        self,
        weights_BTA: jax.Array,
        chosen_BTA: jax.Array,
        logits_BTX: jax.Array,
        context: Context | None,
    ) -> tuple[jax.Array, jax.Array]:
        dtype = jnp.dtype(self.execution.param_dtype)
        scale_X = self.param("expert_scale", nn.initializers.ones, (self.cfg.num_experts,), dtype)
        scale_BTA = scale_X.at[chosen_BTA].get(mode="clip")
        return weights_BTA * scale_BTA.astype(weights_BTA.dtype), chosen_BTA
