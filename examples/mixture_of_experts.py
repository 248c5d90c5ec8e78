"""A mixture of experts, written outside the package: a feed-forward layer with a balancing loss.

    flaxformer_lite train --config=gpt2_tiny --workdir=runs/moe \
        --config.model.feed_forward.name=examples.mixture_of_experts:MoeConfig
        --config.model.feed_forward.num_experts=8

Every expert computes every token, and the router's weights select: no token is dropped, and with a
few experts on one device this costs no more than scattering tokens would.

Reference: Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2; the balancing loss
  is equation 4 of
Fedus et al. 2021, "Switch Transformers" (arXiv:2101.03961).
"""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite import Execution
from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.parts import FeedForwardConfig
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.modules.einsum import initializer


@dataclass(frozen=True, kw_only=True)
class MoeConfig(FeedForwardConfig):
    """The record of `num_experts` copies of the model's feed-forward; each token mixes its `top_k`
    likeliest."""

    name: ClassVar[str] = "moe"

    num_experts: int = 4
    top_k: int = 2
    balance: float = 0.01  # factor on the balancing loss
    # Inside a model, the feed-forward that this one replaces.
    expert: MlpConfig = field(default_factory=MlpConfig, metadata={"internal": True})

    def __post_init__(self):
        if not 1 <= self.top_k <= self.num_experts:
            raise ConfigError(
                f"top_k={self.top_k}, num_experts={self.num_experts}: top_k must be in"
                f" 1..{self.num_experts}."
            )

    def for_model(self, standard):
        return dataclasses.replace(self, expert=standard)

    def module(self, execution, *, name=None):
        return Moe(self, execution, name=name)

    def partition_rules(self):
        inward = (None, "fsdp", "tensor")
        outward = (None, "tensor", "fsdp")
        return ((r"moe/router$", ()), (r"moe/(up|gate)$", inward), (r"moe/down$", outward))


class Moe(nn.Module):
    """y = sum over the chosen experts of gate * expert(x), with gates from a softmax over the
    chosen ones."""

    cfg: MoeConfig
    execution: Execution

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        cfg = self.cfg
        expert = self.cfg.expert
        width = x_BTD.shape[-1]
        hidden = expert.mlp_dim or 4 * width
        dtype = jnp.dtype(self.execution.param_dtype)
        router_DX = self.param(
            "router", initializer(expert.initial, width, 1), (width, cfg.num_experts), jnp.float32
        )
        logits_BTX = x_BTD.astype(jnp.float32) @ router_DX
        gates_BTX, chosen_BTX = self._gates(logits_BTX)
        self._sow_balance(logits_BTX, chosen_BTX)

        def weight(name: str, fan_in: int, fan_out: int) -> jax.Array:
            init = initializer(expert.initial, fan_in, fan_out, residual=name == "down")
            return self.param(name, init, (cfg.num_experts, fan_in, fan_out), dtype).astype(
                x_BTD.dtype
            )

        h_BTXF = jnp.einsum("BTD,XDF->BTXF", x_BTD, weight("up", width, hidden))
        act = ACTIVATIONS[expert.activation]
        if expert.gated:
            h_BTXF = act(jnp.einsum("BTD,XDF->BTXF", x_BTD, weight("gate", width, hidden))) * h_BTXF
        else:
            h_BTXF = act(h_BTXF)
        h_BTXF = h_BTXF * gates_BTX[..., None].astype(h_BTXF.dtype)
        return jnp.einsum("BTXF,XFD->BTD", h_BTXF, weight("down", hidden, width))

    def _gates(self, logits_BTX: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the gates of the experts, zero unless chosen, and which are chosen."""
        least_BT1 = jax.lax.top_k(logits_BTX, self.cfg.top_k)[0][..., -1:]
        chosen_BTX = logits_BTX >= least_BT1
        return jax.nn.softmax(jnp.where(chosen_BTX, logits_BTX, -jnp.inf), axis=-1), chosen_BTX

    def _sow_balance(self, logits_BTX: jax.Array, chosen_BTX: jax.Array) -> None:
        """Sows experts x sum over experts of (share of tokens) x (mean probability): 1 if all are
        used equally."""
        share_X = chosen_BTX.astype(jnp.float32).mean(axis=(0, 1)) / self.cfg.top_k
        probability_X = jax.nn.softmax(logits_BTX, axis=-1).mean(axis=(0, 1))
        loss = self.cfg.num_experts * jnp.sum(share_X * probability_X)
        self.sow("losses", "load_balancing", self.cfg.balance * loss)
