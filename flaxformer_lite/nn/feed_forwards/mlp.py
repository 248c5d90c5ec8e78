"""The feed-forward layer, plain or gated."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import flax.linen as nn
import jax

from flaxformer_lite.config import Count, Execution, InitConfig, OneOf, choices, parts
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.functions.device_ops import ops_of
from flaxformer_lite.nn.functions.sharding import sharding_of
from flaxformer_lite.nn.modules.dropout import Dropout
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.joined import is_joined, multiply_joined

WEIGHTS = (
    (r"mlp/(up|gate)/kernel$", ("fsdp", "tensor")),
    (r"mlp/down/kernel$", ("tensor", "fsdp")),
)
BIASES = ((r"mlp/(up|gate)/bias$", ("tensor",)),)
DOWN_BIAS = ((r"mlp/down/bias$", ()),)


@dataclass(frozen=True, kw_only=True)
class MlpConfig(parts.FeedForwardConfig):
    """The record of a FeedForward.

    Attributes:
      mlp_dim: F; 0 is four times the width of the input.
      activation: a name of nn/functions/activations.py.
      gated: whether a second projection gates the first.
      bias: whether the projections have biases.
      down_bias: whether the last one has, where the others have none (GTE).
      initial: initialization of the weights.
    """

    name: ClassVar[str] = "mlp"
    low_precision: ClassVar[tuple[str, ...]] = ("matmul", "quantize")
    outward: ClassVar[str] = "down"
    reads_one_token: ClassVar[bool] = True

    mlp_dim: Count = 0
    activation: Annotated[str, OneOf(choices.ACTIVATIONS)] = "gelu"
    gated: bool = False
    bias: bool = False
    down_bias: bool = False
    initial: InitConfig = field(default_factory=InitConfig)

    @property
    def joinable(self) -> tuple[str, ...]:
        return ("up", "gate") if self.gated else ()

    def module(self, execution: Execution, *, name: str | None = None) -> "FeedForward":
        return FeedForward(self, execution, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        rules: parts.PartitionRules = WEIGHTS
        if self.bias:
            rules += BIASES
        if self.bias or self.down_bias:
            rules += DOWN_BIAS
        return rules


class FeedForward(nn.Module):
    """y = act(x W_up) W_down, or gated, y = (act(x W_gate) * x W_up) W_down.

    Reference: Vaswani et al. (2017), section 3.3; Shazeer, "GLU Variants Improve Transformer"
    (2020), equation 6.
    """

    cfg: MlpConfig = MlpConfig()
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        cfg = self.cfg
        run = self.execution
        width = x_BTD.shape[-1]
        sizes = {"D": width, "F": cfg.mlp_dim or 4 * width}
        act = ACTIVATIONS[cfg.activation]
        up = self._inward("up", sizes)
        if is_joined(self):
            products = multiply_joined(self, x_BTD, [(sizes["F"],)] * 2, run)
        elif cfg.gated:
            products = [up(x_BTD), self._inward("gate", sizes)(x_BTD)]
        else:
            products = [up(x_BTD)]

        def activate(up_BTF: jax.Array, *gate_BTF: jax.Array) -> jax.Array:
            if not gate_BTF:
                return act(up_BTF)
            return act(gate_BTF[0]) * up_BTF

        down = Einsum(
            "BTF,FD->BTD",
            sizes,
            bias=cfg.bias or cfg.down_bias,
            initial=cfg.initial,
            execution=run,
            residual=True,
            name="down",
        )
        ops = ops_of(sharding_of(run))
        return ops.feed_forward(products, activate, down, Dropout("mlp", run))

    @nn.nowrap
    def _inward(self, name: str, sizes: dict[str, int]) -> Einsum:
        return Einsum(
            "BTD,DF->BTF",
            sizes,
            bias=self.cfg.bias,
            initial=self.cfg.initial,
            execution=self.execution,
            name=name,
        )
