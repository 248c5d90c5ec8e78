"""Attention that may take the keys and values of an earlier layer, or keys as values (Gemma 4)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError, Execution, NormConfig, OneOf, choices, parts, rules
from flaxformer_lite.nn.functions.rotary import rotate
from flaxformer_lite.nn.mixers.attention import Attention, AttentionVariantConfig
from flaxformer_lite.nn.modules.cache import LayerCache
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.kv_cache import Left, Seen
from flaxformer_lite.nn.modules.norms import Norm


@dataclass(frozen=True, kw_only=True)
class SharedKeysConfig(AttentionVariantConfig):
    """The record of a SharedKeys layer.

    Attributes:
      keys: `own`; `kept`, which are left to later layers too; or `earlier`, those that the last
        layer of the same window kept: the layer has no keys, values and cache of its own.
      values_are_keys: whether values are the projected keys, before their norm and rotation.
      value_norm: the norm on each head's values, or `none`.
      norm_eps: added to the mean square of values.
    """

    low_precision: ClassVar[tuple[str, ...]] = ("matmul", "quantize", "cache")

    keys: Annotated[str, OneOf(choices.KEYS)] = "own"
    values_are_keys: bool = False
    value_norm: Annotated[str, OneOf(("none", *choices.NORMS))] = "none"
    norm_eps: rules.NotNegative = 1e-6

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        return SharedKeys(self.attention, execution, causal, record=self, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        whole = self.attention.partition_rules()
        if self.keys != "earlier":
            return whole
        return tuple(rule for rule in whole if "key" not in rule[0])

    def init_cache(
        self, batch: int, length: int, d_model: int, dtype: DTypeLike
    ) -> LayerCache | None:
        if self.keys == "earlier":
            return None
        return self.attention.init_cache(batch, length, d_model, dtype)


class SharedKeys(Attention):
    """Attention to its own keys and values or to an earlier layer's.

    Reference: Brandon et al. 2024, "Reducing Transformer Key-Value Cache Size with Cross-Layer
    Attention" (arXiv:2405.12981), section 2.
    """

    record: SharedKeysConfig = SharedKeysConfig()

    @nn.nowrap
    def project_and_extend(
        self, x_BTD: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, Seen]:
        if self.record.keys != "earlier":
            return super().project_and_extend(x_BTD, context, cache)
        window = self.cfg.window
        if context.earlier is None or window not in context.earlier:
            raise ConfigError(
                f"mixer.keys='earlier', window={window}: no earlier layer of this window keeps its"
                " keys and values; set mixer.keys=kept in one, or own here."
            )
        q_BTNH = self._norm("query_norm", self.project("query", "BTD,DNH->BTNH", x_BTD))
        phase = self._phase(context, cache, x_BTD)
        if phase is not None:
            q_BTNH = rotate(q_BTNH, phase)
        return q_BTNH, context.earlier[window]

    @nn.nowrap
    def leave(self, seen: Seen) -> Left:
        if self.record.keys == "kept":
            return {self.cfg.window: seen}
        return seen.cache

    def _keys(self, x_BSD: jax.Array) -> tuple[jax.Array, jax.Array]:
        k_BSKH = self.project("key", "BSD,DKH->BSKH", x_BSD)
        v_BSKH = k_BSKH
        if not self.record.values_are_keys:
            v_BSKH = self.project("value", "BSD,DKH->BSKH", x_BSD)
        if self.record.value_norm == "none":
            return k_BSKH, v_BSKH
        norm = NormConfig(kind=self.record.value_norm, eps=self.record.norm_eps)
        return k_BSKH, Norm(norm, self.execution, name="value_norm")(v_BSKH)
