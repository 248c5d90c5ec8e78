"""A mixture of experts with room for a limited number of tokens each; the others pass them by."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import jax
import jax.numpy as jnp

from flaxformer_lite.config import Count, Execution, OneOf, choices
from flaxformer_lite.config.rules import NotNegative, Positive, Range, Size
from flaxformer_lite.nn.feed_forwards.moe import Moe, MoeConfig, kept_tokens
from flaxformer_lite.nn.functions.routing import drop_choices, within_capacity
from flaxformer_lite.nn.functions.sharding import sharding_of
from flaxformer_lite.nn.modules.context import Context

Fraction = Annotated[float, Range(0, 1, "be from 0 to 1")]


@dataclass(frozen=True, kw_only=True)
class CapacityMoeConfig(MoeConfig):
    """The record of a CapacityMoe.

    Attributes:
      group: the tokens that share the capacity of an expert: of a `row` (Switch), or of the whole
        `batch` (NLLB-MoE). The documents of a packed row share it.
      capacity: the tokens of a group that an expert has room for; 0: by the factors.
      capacity_factor: the room in training, as a multiple of the tokens of a group divided by the
        number of experts, rounded.
      eval_capacity_factor: the same at inference.
      eval_fraction: at inference an expert has room for this share of the tokens of a group,
        rounded up, in place of the factor and of `capacity` (NLLB-MoE); 0: it is not used.
      jitter: in training, each number that the router reads is multiplied by one between 1 - jitter
        and 1 + jitter.
      renormalize: whether the weights of the experts that have room for a token sum to one.
      prioritized: whether tokens with a likelier first choice come first, in place of earlier ones.
      skips_padding: whether padding goes to no expert; otherwise it takes room.
      masked: the share of experts' outputs that are left out in training; at inference all are
        multiplied by what is left (NLLB team 2022, section 6.2.2).
    """

    reads_one_token: ClassVar[bool] = False
    differs_in_training: ClassVar[bool] = True

    experts_per_token: Size = 1
    normalize: bool = False
    group: Annotated[str, OneOf(choices.CAPACITY_GROUPS)] = "row"
    capacity: Count = 0
    capacity_factor: Positive = 1.25
    eval_capacity_factor: Positive = 2.0
    eval_fraction: Fraction = 0.0
    jitter: NotNegative = 0.01
    renormalize: bool = False
    prioritized: bool = False
    skips_padding: bool = False
    masked: Fraction = 0.0

    @property
    def at_inference(self) -> Self:
        usual = dataclasses.replace(self, jitter=0.0, capacity_factor=1.0)
        return super(CapacityMoeConfig, usual).at_inference

    def expert_capacity(self, tokens: int, *, training: bool) -> int | jax.Array:
        """Returns how many tokens of a group an expert has room for.

        Args:
          tokens: of a group.
          training: whether it is a step of training.
        """
        if self.eval_fraction and not training:
            return math.ceil(self.eval_fraction * tokens)
        if self.capacity:
            return self.capacity
        return max(1, round(self.factor(training=training) * tokens / self.num_experts))

    def factor(self, *, training: bool) -> float:
        """Returns the factor, at most the one at which an expert has room for all tokens."""
        factor = self.capacity_factor if training else self.eval_capacity_factor
        return min(factor, self.num_experts)

    def module(self, execution: Execution, *, name: str | None = None) -> "CapacityMoe":
        return CapacityMoe(self, execution, name=name)


class CapacityMoe(Moe):
    """A Moe where each expert takes the first tokens of a group that chose it, up to its capacity.

    The router reads float32. A token without room gets zero, so that in a model the residual passes
    the layer by.

    Reference: Fedus et al. 2021, "Switch Transformers" (arXiv:2101.03961), section 2.2; NLLB team
    2022, "No Language Left Behind" (arXiv:2207.04672), section 6.2.
    """

    cfg: CapacityMoeConfig = CapacityMoeConfig()

    def router_input(self, x_BTD: jax.Array) -> jax.Array:
        # transformers' Switch multiplies float32 tokens in place, so that there its experts read
        # the noise too; here only the router does.
        x_BTD = x_BTD.astype(jnp.float32)
        if not self.cfg.jitter or not self.has_rng("dropout"):
            return x_BTD
        jitter = self.cfg.jitter
        noise = jax.random.uniform(
            self.make_rng("dropout"), x_BTD.shape, minval=1 - jitter, maxval=1 + jitter
        )
        return x_BTD * noise

    def combine_weights(
        self,
        weights_BTA: jax.Array,
        chosen_BTA: jax.Array,
        logits_BTX: jax.Array,
        context: Context | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns combine weights of the experts that have capacity left for a token."""
        cfg = self.cfg
        batch, length, copies = chosen_BTA.shape
        training = self.has_rng("dropout")
        keep_L = kept_tokens(context, logits_BTX) if cfg.skips_padding else None
        keep_BT = None if keep_L is None else keep_L.reshape(batch, length)
        has_room_for_all = cfg.eval_fraction == 1 and not training
        priority_BT = None
        if cfg.prioritized and not has_room_for_all:
            priority_BT = jax.nn.softmax(logits_BTX).max(axis=-1)

        def fits(
            chosen_BTA: jax.Array, keep_BT: jax.Array | None, priority_BT: jax.Array | None
        ) -> jax.Array:
            tokens = chosen_BTA.shape[1]
            capacity = cfg.expert_capacity(tokens, training=training)

            def of_group(
                chosen_LA: jax.Array, keep_L: jax.Array | None, priority_L: jax.Array | None
            ) -> jax.Array:
                return within_capacity(
                    chosen_LA, cfg.num_experts, capacity, keep_L=keep_L, priority_L=priority_L
                )

            return jax.vmap(of_group)(chosen_BTA, keep_BT, priority_BT)

        if cfg.group == "row":
            # By hand, as rows have nothing to do with each other.
            on_shards = sharding_of(self.execution).per_shard(fits, ("B", "B", "B"), "B")
            fits_BTA = on_shards(chosen_BTA, keep_BT, priority_BT)
        else:
            one_row = chosen_BTA.reshape(1, batch * length, copies)
            keep_1L = None if keep_BT is None else keep_BT.reshape(1, -1)
            priority_1L = None if priority_BT is None else priority_BT.reshape(1, -1)
            fits_BTA = fits(one_row, keep_1L, priority_1L).reshape(chosen_BTA.shape)
        weights_BTA, chosen_BTA = drop_choices(weights_BTA, chosen_BTA, fits_BTA, cfg.num_experts)
        if cfg.renormalize:
            total_BT1 = weights_BTA.sum(axis=-1, keepdims=True)
            # Clamped as transformers does for NLLB-MoE: a token without room has weight zero, not
            # NaN.
            weights_BTA = weights_BTA / jnp.maximum(total_BT1, jnp.finfo(jnp.float32).eps)
        if cfg.masked and training:
            left = jax.random.bernoulli(self.make_rng("dropout"), 1 - cfg.masked, weights_BTA.shape)
            weights_BTA = jnp.where(left, weights_BTA, 0.0)
        elif cfg.masked:
            weights_BTA *= 1 - cfg.masked
        return weights_BTA, chosen_BTA
