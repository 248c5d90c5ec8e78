"""Attention in which the first tokens see, and are seen by, all others (Longformer)."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, Execution, rules
from flaxformer_lite.config.parts import StackCall
from flaxformer_lite.nn.functions import block_local, kernels, masks
from flaxformer_lite.nn.mixers.attention import Attention, AttentionVariantConfig, arange
from flaxformer_lite.nn.modules.cache import LayerCache
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.documents import documents_of


@dataclass(frozen=True, kw_only=True)
class GlobalTokensConfig(AttentionVariantConfig):
    """The record of attention with global tokens beside a window.

    Attributes:
      first: the tokens at the beginning of a row that are global; 0 for none.

    Reference: Beltagy et al. 2020, "Longformer" (arXiv:2004.05150), section 3.1.
    """

    whole_rows: ClassVar[bool] = True
    both_ways: ClassVar[bool] = True

    first: rules.Count = 1

    def prepare(
        self, context: Context, x_BTD: jax.Array, execution: Execution, **options: Unpack[StackCall]
    ) -> Context:
        """Leaves the mask as it is, for its padding is read apart from the window."""
        return self.attention.with_phase(context, x_BTD)

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        if causal:
            raise ConfigError(
                "mixer.name='global_tokens': its tokens see later ones, so no decoder can have it;"
                " use it in an encoder."
            )
        return GlobalTokens(self.attention, execution, record=self, name=name)


class GlobalTokens(Attention):
    """Attends within the window and to the global tokens, which have projections of their own.

    They read all tokens by these, and are read by the usual ones.
    """

    record: GlobalTokensConfig = GlobalTokensConfig()

    @nn.compact
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, None]:
        count = self.record.first
        kept_BT = documents_of(context, x_BTD, mixer="global_tokens", packs=not count).kept_BT
        q_BTNH, seen = self.project_and_extend(x_BTD, context, None)
        scale = self.scale_of(q_BTNH)
        args = self.self_arguments(context, x_BTD, seen, scale=scale)
        if args.mask is not None:
            first_BS = kept_BT & (arange(x_BTD) < count)[None]
            args = dataclasses.replace(args, mask=args.mask | masks.padding(first_BS))
        out_BTNH = self.attend(*self.place_heads(q_BTNH, seen.k_BSKH, seen.v_BSKH), args)
        read_BSD = x_BTD
        if not count:  # published files have the matrices even where no token is global
            read_BSD = x_BTD[:, :0]
        q_BGNH = self.project("global_query", "BTD,DNH->BTNH", x_BTD[:, :count])
        k_BSKH = self.project("global_key", "BSD,DKH->BSKH", read_BSD)
        v_BSKH = self.project("global_value", "BSD,DKH->BSKH", read_BSD)
        if count:
            scores_BNGS = kernels.dot_products(q_BGNH, k_BSKH) * scale
            weights_BNGS = kernels.softmax(scores_BNGS, kept_BT[:, None])
            dropout = self.weight_dropout()
            if dropout is not None:
                weights_BNGS = block_local.drop(weights_BNGS, dropout, block_local.NO_PART)
            first_BGNH = kernels.pool(weights_BNGS, v_BSKH)
            out_BTNH = jnp.concatenate([first_BGNH, out_BTNH[:, count:]], axis=1)
        return self.project_out(out_BTNH, x_BTD), None
