"""A gated convolution over the last few tokens (LFM2)."""

from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError, Execution, parts, rules
from flaxformer_lite.nn.mixers.recurrent import (
    begin_recurrence,
    convolve_last,
    finish_recurrence,
)
from flaxformer_lite.nn.modules import cache as caches
from flaxformer_lite.nn.modules.cache import StateCache
from flaxformer_lite.nn.modules.context import Context, ContextLayer
from flaxformer_lite.nn.modules.documents import StateReader
from flaxformer_lite.nn.modules.einsum import Einsum


@dataclass(frozen=True, kw_only=True)
class ShortConvolutionConfig(StateReader):
    """The record of a ShortConvolution.

    Attributes:
      taps: tokens that the convolution sums, the token itself among them.
    """

    name: ClassVar[str] = "short_conv"

    taps: rules.Size = 3

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        if not causal:
            raise ConfigError(
                "mixer.name='short_convolution': reads from left to right; use it in a decoder, and"
                " convolution in an encoder."
            )
        return ShortConvolution(self, execution, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        return (
            (rf"{self.name}/input/kernel$", ("fsdp", None, None)),
            (rf"{self.name}/out/kernel$", (None, "fsdp")),
            (rf"{self.name}/taps$", ()),
        )

    def init_cache(self, batch: int, length: int, d_model: int, dtype: DTypeLike) -> StateCache:
        return caches.empty_state([(self.taps - 1) * d_model], batch, length, dtype)


class ShortConvolution(ContextLayer):
    """y_t = W (c_t sum_i k_i b_(t-i) v_(t-i)), with gates b, c and values v projected from x.

    What is summed is zero at padding and beyond a document.

    Reference: Liquid AI 2025, the published code of LFM2 (`Lfm2ShortConv`).
    """

    cfg: ShortConvolutionConfig
    execution: Execution = Execution()

    @nn.compact
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: StateCache | None
    ) -> tuple[jax.Array, StateCache | None]:
        cfg = self.cfg
        run = self.execution
        width = x_BTD.shape[-1]
        x_BTD, context, (last_BU,) = begin_recurrence(
            cfg, run, x_BTD, context, cache, [(cfg.taps - 1) * width], causal=True
        )
        sizes = {"D": width, "Z": 3, "U": width}
        project = Einsum("BTD,DZU->BTZU", sizes, initial=cfg.initial, execution=run, name="input")
        gate_BTU, out_gate_BTU, value_BTU = jnp.moveaxis(project(x_BTD), 2, 0)
        gated_BTU = gate_BTU * value_BTU
        if context.keep_BT is not None:
            gated_BTU = jnp.where(context.keep_BT[..., None], gated_BTU, 0)
        sums_BTU, last_BU = convolve_last(self, cfg.taps, gated_BTU, last_BU, context)
        out = Einsum(
            "BTU,UD->BTD", sizes, initial=cfg.initial, execution=run, residual=True, name="out"
        )
        return finish_recurrence(out(out_gate_BTU * sums_BTU), context, cache, (last_BU,))
