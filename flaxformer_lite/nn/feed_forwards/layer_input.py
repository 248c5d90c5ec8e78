"""A narrow feed-forward that a vector of each token for this layer gates (Gemma 4)."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Self

import flax.linen as nn
import jax

from flaxformer_lite.config import Execution, InitConfig, OneOf, Size, choices, parts
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.einsum import Einsum


@dataclass(frozen=True, kw_only=True)
class LayerInputConfig(parts.FeedForwardConfig):
    """The record of a LayerInput.

    Attributes:
      width: P, of the vectors.
      activation: a name of nn/functions/activations.py; in a model, the model's.
      initial: initialization of the weights; in a model, the model's.
    """

    name: ClassVar[str] = "layer_input"
    low_precision: ClassVar[tuple[str, ...]] = ("matmul", "quantize")
    reads_context: ClassVar[bool] = True
    reads_one_token: ClassVar[bool] = True

    width: Size = 256
    activation: Annotated[str, OneOf(choices.ACTIVATIONS)] = "gelu_tanh"
    initial: InitConfig = field(default_factory=InitConfig, metadata={"internal": True})

    def for_model(self, standard: parts.Part) -> Self:
        assert isinstance(standard, MlpConfig), "what a model's feed-forward is"
        return dataclasses.replace(self, activation=standard.activation, initial=standard.initial)

    def module(self, execution: Execution, *, name: str | None = None) -> "LayerInput":
        return LayerInput(self, execution, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        return (
            (r"layer_input/gate/kernel$", ("fsdp", None)),
            (r"layer_input/out/kernel$", (None, "fsdp")),
        )


class LayerInput(nn.Module):
    """y = (act(x W_gate) * p) W_out, with p of the context; without one, p is 1."""

    cfg: LayerInputConfig = LayerInputConfig()
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, x_BTD: jax.Array, context: Context | None = None) -> jax.Array:
        cfg = self.cfg
        run = self.execution
        sizes = {"D": x_BTD.shape[-1], "P": cfg.width}
        gate = Einsum("BTD,DP->BTP", sizes, initial=cfg.initial, execution=run, name="gate")
        out = Einsum(
            "BTP,PD->BTD", sizes, initial=cfg.initial, execution=run, residual=True, name="out"
        )
        h_BTP = ACTIVATIONS[cfg.activation](gate(x_BTD))
        if context is not None and context.inputs_BTLP is not None:
            h_BTP = h_BTP * context.inputs_BTLP[:, :, 0]
        return out(h_BTP)
