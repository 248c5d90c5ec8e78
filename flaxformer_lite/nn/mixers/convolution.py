"""A convolution over the tokens of a row, with an activation: local context (DeBERTa-v2)."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, Execution, InitConfig, choices, parts, rules
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.modules.cache import MixerCache
from flaxformer_lite.nn.modules.context import Context, ContextLayer
from flaxformer_lite.nn.modules.documents import DocumentReader, with_documents
from flaxformer_lite.nn.modules.dropout import Dropout
from flaxformer_lite.nn.modules.einsum import make_initializer


@dataclass(frozen=True, kw_only=True)
class ConvolutionConfig(DocumentReader):
    """The record of a Convolution.

    Attributes:
      width: number of tokens that a filter reads, odd: as many before as after its own.
      activation: on the result.
      initial: initialization of the filters; in a model, the model's.
    """

    name: ClassVar[str] = "conv"
    both_ways: ClassVar[bool] = True

    width: rules.Size = 3
    activation: Annotated[str, rules.OneOf(choices.ACTIVATIONS)] = "gelu"
    initial: InitConfig = field(default_factory=InitConfig, metadata={"internal": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2 == 0:
            raise ConfigError(
                f"mixer.width={self.width}: must be odd, as many tokens before as after; set"
                f" {self.width + 1}."
            )

    def for_model(self, standard: parts.Part) -> Self:
        return dataclasses.replace(self, initial=getattr(standard, "initial", self.initial))

    def module(
        self, execution: Execution, *, causal: bool, name: str | None = None
    ) -> "Convolution":
        if causal:
            raise ConfigError(
                "mixer.name='convolution': reads later tokens too, so no decoder can have it; use"
                " it in an encoder."
            )
        return Convolution(self, execution, name=name)


class Convolution(ContextLayer):
    """y_t = activation(sum_o W_o x_(t+o) + b), where x is zero beyond a document and at padding.

    Reference: He et al. 2021, the published code of DeBERTa-v2 (`ConvLayer`).
    """

    cfg: ConvolutionConfig
    execution: Execution = Execution()

    @nn.compact
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: MixerCache | None
    ) -> tuple[jax.Array, None]:
        if not context.prepared:
            context = with_documents(context, x_BTD, causal=False)
        cfg = self.cfg
        length = x_BTD.shape[1]
        width = x_BTD.shape[2]
        dtype = jnp.dtype(self.execution.param_dtype)
        init = make_initializer(cfg.initial, cfg.width * width, width)
        # outputs, inputs, offset: as torch has it
        filters = self.param("filters", init, (width, width, cfg.width), dtype)
        bias_D = self.param("bias", nn.initializers.zeros, (width,), dtype)
        if context.keep_BT is not None:
            x_BTD = jnp.where(context.keep_BT[..., None], x_BTD, 0)
        document_BT = None
        if context.starts_BT is not None:
            document_BT = jnp.cumsum(context.starts_BT.astype(jnp.int32), axis=1)
        reach = cfg.width // 2
        padded_BTD = jnp.pad(x_BTD, ((0, 0), (reach, reach), (0, 0)))
        y_BTD = jnp.zeros_like(x_BTD)
        for offset in range(cfg.width):
            near_BTD = padded_BTD[:, offset : offset + length]
            if document_BT is not None:
                padded_BT = jnp.pad(document_BT, ((0, 0), (reach, reach)), constant_values=-1)
                same_BT = padded_BT[:, offset : offset + length] == document_BT
                near_BTD = jnp.where(same_BT[..., None], near_BTD, 0)
            weight_DD = filters[:, :, offset].astype(x_BTD.dtype)
            y_BTD += jnp.einsum("BTI,OI->BTO", near_BTD, weight_DD)
        y_BTD += bias_D.astype(x_BTD.dtype)[None, None]
        y_BTD = Dropout("branch", self.execution)(y_BTD)
        return ACTIVATIONS[cfg.activation](y_BTD), None
