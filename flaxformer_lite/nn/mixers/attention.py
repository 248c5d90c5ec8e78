"""Multi-head, multi-query and grouped-query attention.

It serves self- and cross-attention, with and without a cache.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Self, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flaxformer_lite import registry
from flaxformer_lite.config import (
    ConfigError,
    Execution,
    InitConfig,
    NormConfig,
    choices,
    parts,
    rules,
)
from flaxformer_lite.config.parts import StackCall
from flaxformer_lite.nn.attentions.arguments import Arguments, Bias as LogitBias, check_mask
from flaxformer_lite.nn.attentions.dispatch import select_implementation
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.block_local import WeightDropout
from flaxformer_lite.nn.functions.device_ops import OUT, QKV, name_arrays, ops_of
from flaxformer_lite.nn.functions.masks import Mask
from flaxformer_lite.nn.functions.rotary import Phase, rotate
from flaxformer_lite.nn.functions.sharding import ActivationSharding, sharding_of
from flaxformer_lite.nn.modules import cache as caches, kv_cache
from flaxformer_lite.nn.modules.cache import LayerCache
from flaxformer_lite.nn.modules.context import Context, ContextLayer, PositionTables
from flaxformer_lite.nn.modules.dropout import dropout_of_weights
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.joined import is_joined, multiply_joined
from flaxformer_lite.nn.modules.kv_cache import Left, Seen
from flaxformer_lite.nn.modules.norms import Norm
from flaxformer_lite.nn.positions.encoding import Bias, Encoding, Tables, list_hooks

# Fewer key and value heads than shards stay whole; each shard of the queries takes what it reads.
SHARED_HEADS = parts.WhereItDivides("tensor")
IN_WEIGHTS = (
    (r"query/kernel$", ("fsdp", "tensor", None)),
    (r"(key|value)/kernel$", ("fsdp", SHARED_HEADS, None)),
)
OUT_WEIGHT = ((r"attention/out/kernel$", ("tensor", None, "fsdp")),)
QUERY_BIAS = ((r"query/bias$", ("tensor", None)),)
SHARED_BIASES = ((r"(key|value)/bias$", (SHARED_HEADS, None)),)
GATE_WEIGHT = ((r"attention/gate/kernel$", ("fsdp", "tensor", None)),)
GATE_BIAS = ((r"attention/gate/bias$", ("tensor", None)),)
OUT_BIAS = ((r"attention/out/bias$", ()),)
SINKS = ((r"attention/sinks$", ("tensor",)),)


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(parts.MixerConfig):
    """The record of an Attention.

    Attributes:
      num_heads: N.
      num_kv_heads: K; 0 is N, 1 is multi-query, anything between is grouped-query.
      head_dim: H; 0 is the width of the input divided by N.
      bias: the projections that have a bias, out of `query`, `key`, `value` and `out`.
      scale: factor on the dot products; None is 1 / sqrt(H).
      softcap: turns logits into cap * tanh(logits / cap); 0 for none.
      window: size of a sliding window; 0 sees everything.
      qk_norm: the norm on each head's queries and keys (Qwen3); None for none.
      qk_norm_over: `head` has the same weights for every head (Qwen3), `each_head` others for each
        (Cohere), `all_heads` is one norm over all heads together (OLMo 2).
      clip: queries, keys and values are clipped to [-clip, clip] after their norms (OLMo,
        OLMoE); 0 for none.
      position: an encoding; its `phase` rotates queries and keys, its `bias` adds to logits.
      max_length: rows of a learned position table.
      initial: initialization of the weights.
      gate: whether a sigmoid of another projection of the input multiplies the output of each head
        (Qwen3-Next).
      sinks: whether each head learns the logit of one more column, which has no value and which
        every row sees (gpt-oss).
      cross: whether keys and values come from the encoder's output instead of the layer's own
        input.
    """

    name: ClassVar[str] = "attention"
    low_precision: ClassVar[tuple[str, ...]] = ("matmul", "quantize", "cache")
    outward: ClassVar[str] = "out"

    num_heads: rules.Size
    num_kv_heads: rules.Count = 0
    head_dim: rules.Count = 0
    bias: tuple[Annotated[str, rules.OneOf(choices.ATTENTION_BIAS_SLOTS)], ...] = ()
    scale: float | None = None
    softcap: rules.NotNegative = 0.0
    window: rules.Count = 0
    qk_norm: NormConfig | None = None
    qk_norm_over: Annotated[str, rules.OneOf(choices.QK_NORM_OVER)] = "head"
    clip: rules.NotNegative = 0.0
    position: Annotated[Encoding, ", such as Rope()"] = field(default_factory=Encoding)
    max_length: rules.Size = 512
    initial: InitConfig = field(default_factory=InitConfig)
    gate: bool = False
    sinks: bool = False
    cross: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_heads % self.kv_heads:
            raise ConfigError(
                f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}: heads must be a"
                " multiple of kv heads."
            )

    @property
    def joinable(self) -> tuple[str, ...]:
        if self.cross:
            return ()
        return ("query", "key", "value")

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def head_width(self, d_model: int) -> int:
        """Returns H for a model of this width."""
        if not self.head_dim and d_model % self.num_heads:
            raise ConfigError(
                f"num_heads={self.num_heads}: the input's width {d_model} is not a multiple of the"
                " heads; set head_dim."
            )
        return self.head_dim or d_model // self.num_heads

    def table_sizes(self, d_model: int) -> parts.TableSizes:
        """Returns the sizes that the tables of a position encoding depend on."""
        return parts.TableSizes(
            d_model=d_model,
            num_heads=self.num_heads,
            head_dim=self.head_width(d_model),
            max_length=self.max_length,
            initial=self.initial,
        )

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> "Attention":
        return Attention(self, execution, causal, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        rules: parts.PartitionRules = IN_WEIGHTS + OUT_WEIGHT
        if self.gate:
            rules += GATE_WEIGHT
        if "query" in self.bias:
            rules += QUERY_BIAS
            if self.gate:
                rules += GATE_BIAS
        if {"key", "value"} & set(self.bias):
            rules += SHARED_BIASES
        if self.sinks:
            rules += SINKS
        if "out" in self.bias:
            rules += OUT_BIAS
        return rules

    def init_cache(self, batch: int, length: int, d_model: int, dtype: DTypeLike) -> LayerCache:
        return caches.empty(
            batch, self.kv_heads, length, self.head_width(d_model), dtype, window=self.window
        )

    def prepare(
        self, context: Context, x_BTD: jax.Array, execution: Execution, **options: Unpack[StackCall]
    ) -> Context:
        """Computes what all layers of a stack share: phases and bias tables.

        If each layer would otherwise evaluate them, also the mask and the bias as arrays.
        """
        context = self.with_phase(context, x_BTD)
        if not self.position.by_difference and context.columns_BS is None and context.index is None:
            context = context.replace(columns_BS=context.position_ids_BT)
        if "bias" in list_hooks(self.position) and not self.position.per_layer:
            sizes = self.table_sizes(x_BTD.shape[-1])
            context = context.replace(tables=options["tables"](self.position, **sizes))
        return share_mask_and_bias(self, context, x_BTD, execution, causal=options["causal"])

    def with_phase(self, context: Context, x_BTD: jax.Array) -> Context:
        """Adds the angles by which the position encoding turns queries and keys, if it has any."""
        if "phase" not in list_hooks(self.position):
            return context
        assert context.position_ids_BT is not None, "a stack numbers its tokens"
        width = self.head_width(x_BTD.shape[-1])
        return context.replace(phase=self.position.phase(context.position_ids_BT, width))


@dataclass(frozen=True, kw_only=True)
class AttentionVariantConfig(parts.MixerConfig):
    """Base class of the records of mixers that take the place of attention, with its projections.

    Attributes:
      attention: sizes and options of the attention that this one replaces; in a model, the model's.
    """

    name: ClassVar[str] = "attention"

    attention: AttentionConfig = field(
        default_factory=lambda: AttentionConfig(num_heads=1), metadata={"internal": True}
    )

    @property
    def position(self) -> Encoding:
        return self.attention.position

    @property
    def plain(self) -> AttentionConfig:
        """The record of the plain attention that gives this one its positions."""
        return self.attention

    def for_model(self, standard: parts.Part) -> Self:
        assert isinstance(standard, AttentionConfig), "what a model's mixer replaces"
        return dataclasses.replace(self, attention=standard)

    def table_sizes(self, d_model: int) -> parts.TableSizes:
        return self.plain.table_sizes(d_model)

    def prepare(
        self, context: Context, x_BTD: jax.Array, execution: Execution, **options: Unpack[StackCall]
    ) -> Context:
        """Computes what all layers of a stack share, by default what plain attention does."""
        return self.plain.prepare(context, x_BTD, execution, **options)

    def partition_rules(self) -> parts.PartitionRules:
        return self.attention.partition_rules()

    def init_cache(
        self, batch: int, length: int, d_model: int, dtype: DTypeLike
    ) -> LayerCache | None:
        return self.attention.init_cache(batch, length, d_model, dtype)


class Attention(ContextLayer):
    """Projects to heads, attends, and projects back.

    Outside a stack (see `Context.prepared`), phases and position biases are computed here, with
    positions counted from the first slot.

    Reference: Vaswani et al. (2017), section 3.2; Shazeer (2019) for one, Ainslie et al. (2023) for
    grouped K/V heads.
    """

    cfg: AttentionConfig
    execution: Execution = Execution()
    # whether rows see only themselves and earlier ones, on top of the mask (see Context.structured)
    causal: bool = False

    @nn.compact
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, Left]:
        cfg = self.cfg
        if cfg.cross:
            q_BTNH = self.project("query", "BTD,DNH->BTNH", x_BTD)
            seen = self._cross_keys(context, cache)
            args = self.arguments(context.cross_mask, seen, scale=self.scale_of(q_BTNH))
        else:
            x_BTD = self._check_cache(x_BTD, context, cache)
            q_BTNH, seen = self.project_and_extend(x_BTD, context, cache)
            args = self.self_arguments(context, x_BTD, seen, scale=self.scale_of(q_BTNH))
        if cfg.sinks:
            stored = jnp.dtype(self.execution.param_dtype)
            sinks_N = self.param("sinks", nn.initializers.zeros, (cfg.num_heads,), stored)
            args = dataclasses.replace(args, sinks_N=sinks_N)
        times = copies_of_heads(q_BTNH, seen.k_BSKH, args.sharding)
        k_BSKH = seen.k_BSKH
        v_BSKH = seen.v_BSKH
        if times > 1:
            k_BSKH = jnp.repeat(k_BSKH, times, axis=2)
            v_BSKH = jnp.repeat(v_BSKH, times, axis=2)
        out_BTNH = self.attend(*self.place_heads(q_BTNH, k_BSKH, v_BSKH), args)
        return self.project_out(out_BTNH, x_BTD), self.leave(seen)

    @nn.nowrap
    def project_and_extend(
        self, x_BTD: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, Seen]:
        """Returns queries, and the keys and values that they see."""
        q_BTNH, k_BTKH, v_BTKH = self.project_heads(x_BTD, x_BTD, context, cache)
        return q_BTNH, self.extend(cache, k_BTKH, v_BTKH, context)

    @nn.nowrap
    def leave(self, seen: Seen) -> Left:
        """Returns what a layer leaves to later calls, its cache."""
        return seen.cache

    def _check_cache(
        self, x_BTD: jax.Array, context: Context, cache: LayerCache | None
    ) -> jax.Array:
        """Checks a cache that no stack has checked; a traced fault turns x into NaN."""
        if cache is None or (context.prepared and isinstance(cache, LayerCache)):
            return x_BTD
        return caches.check_layer(x_BTD, cache, context.index, first=context.first)

    def project_heads(
        self, x_BTD: jax.Array, x_BSD: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Projects x_BTD to queries, x_BSD to keys and values, and turns them by position."""
        phase = self._phase(context, cache, x_BTD)
        if is_joined(self):
            head_dim = self.cfg.head_width(x_BTD.shape[-1])
            heads = (self.cfg.num_heads, self.cfg.kv_heads, self.cfg.kv_heads)
            shapes = [(number, head_dim) for number in heads]
            q_BTNH, k_BTKH, v_BTKH = multiply_joined(self, x_BTD, shapes, self.execution)
            return self._turned(q_BTNH, k_BTKH, v_BTKH, phase)
        q_BTNH = self.project("query", "BTD,DNH->BTNH", x_BTD)
        return self._turned(q_BTNH, *self._keys(x_BSD), phase)

    def extend(
        self, cache: LayerCache | None, k_BTKH: jax.Array, v_BTKH: jax.Array, context: Context
    ) -> Seen:
        """Returns the keys and values of this call and, with a cache, those before them."""
        if cache is None:
            return Seen(None, k_BTKH, v_BTKH)
        caches.check_window(cache, self.cfg.window)
        return kv_cache.extend(cache, k_BTKH, v_BTKH, context.index, first=context.first)

    def self_arguments(
        self,
        context: Context,
        x_BTD: jax.Array,
        seen: Seen,
        *,
        scale: float,
        bias: LogitBias | jax.Array | None = None,
    ) -> Arguments:
        """Returns the arguments of attention to the layer's own tokens.

        Without a `bias`, the position encoding's is added.
        """
        batch, length, _ = x_BTD.shape
        columns = seen.k_BSKH.shape[1]
        check_mask(context.mask, batch, length, columns, seen.q_index, seen.k_index)
        q_index_T = slots_or_positions(seen.q_index, x_BTD)
        k_index_S = slots_or_positions(seen.k_index, seen.k_BSKH)
        mask = self._mask(context, q_index_T, k_index_S)
        if bias is None:
            bias = self._bias(context, x_BTD, q_index_T, k_index_S)
        return self.arguments(mask, seen, scale=scale, bias=bias)

    def arguments(
        self,
        mask: Mask | jax.Array | None,
        seen: Seen,
        *,
        scale: float,
        bias: LogitBias | jax.Array | None = None,
    ) -> Arguments:
        """Returns the arguments of attention, with the slots of a cache and with dropout."""
        dropout_rate, dropout_key = dropout_of_weights(self, self.execution)
        return Arguments(
            mask=mask,
            bias=bias,
            scale=scale,
            softcap=self.cfg.softcap,
            q_index=seen.q_index,
            k_index=seen.k_index,
            sharding=sharding_of(self.execution),
            dropout_rate=dropout_rate,
            dropout_key=dropout_key,
        )

    @nn.nowrap
    def scale_of(self, q_BTNH: jax.Array) -> float:
        """Returns the factor on the dot products, by default 1 / sqrt(H)."""
        if self.cfg.scale is None:
            return q_BTNH.shape[-1] ** -0.5
        return self.cfg.scale

    def weight_dropout(self) -> WeightDropout | None:
        """Returns the dropout of weights for attention in blocks; None: it is off."""
        rate, key = dropout_of_weights(self, self.execution)
        if key is None:
            return None
        return WeightDropout(key, rate)

    def place_heads(
        self, q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Splits queries, keys and values over devices, and names them for rematerialization."""
        constrain = sharding_of(self.execution).constrain
        q_BTNH = constrain(q_BTNH, "BTNH")
        k_BSKH = constrain(k_BSKH, "BTNH")
        v_BSKH = constrain(v_BSKH, "BTNH")
        q_BTNH, k_BSKH, v_BSKH = name_arrays(QKV, q_BTNH, k_BSKH, v_BSKH)
        return q_BTNH, k_BSKH, v_BSKH

    def project_out(self, out_BTNH: jax.Array, x_BTD: jax.Array) -> jax.Array:
        """Gates what the heads found by the layer's input, and projects it back, [B, T, D]."""
        sharding = sharding_of(self.execution)
        out_BTNH = sharding.constrain(out_BTNH, "BTNH")
        if self.cfg.gate:
            gate_BTNH = self.project("gate", "BTD,DNH->BTNH", x_BTD)
            out_BTNH = out_BTNH * jax.nn.sigmoid(sharding.constrain(gate_BTNH, "BTNH"))
        out_BTNH = ops_of(sharding).compute_once(out_BTNH)
        return name_arrays(
            OUT, self.project("out", "BTNH,NHD->BTD", out_BTNH, width=x_BTD.shape[-1])
        )

    def attend(
        self, q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: Arguments
    ) -> jax.Array:
        """Computes the mean of the values for each head, [B, T, N, H].

        nn/modules/interceptors.py intercepts this call for its weights.
        """
        lengths = q_BTNH.shape[1], k_BSKH.shape[1]
        return select_implementation(self.execution.attention, *lengths, args.sharding)(
            q_BTNH, k_BSKH, v_BSKH, args
        )

    def project(self, name: str, equation: str, x: jax.Array, width: int = 0) -> jax.Array:
        """Applies the projection `query`, `key`, `value`, `gate` or `out` to `x`.

        Subclasses may add to it. `width` is the model's, where x is as wide as the heads.
        """
        if width:
            return self.projection(name, equation, width, x.shape[-1])(x)
        return self.projection(name, equation, x.shape[-1])(x)

    def projection(self, name: str, equation: str, d_model: int, head_dim: int = 0) -> Einsum:
        """Builds a projection; `position_key` and `global_key` are built like `key`.

        A head_dim of 0 is the record's.
        """
        cfg = self.cfg
        slot = name.removeprefix("position_").removeprefix("global_")
        biased = "query" if name == "gate" else slot
        has_bias = biased in cfg.bias
        head_dim = head_dim or cfg.head_width(d_model)
        sizes = {"D": d_model, "N": cfg.num_heads, "K": cfg.kv_heads, "H": head_dim}
        # Mesh TensorFlow folds the missing 1 / sqrt(H) of the logits' scale (T5's is 1) into the
        # initial queries.
        gain = 1.0
        if slot == "query" and cfg.scale:
            gain = head_dim**-0.5 / cfg.scale
        return Einsum(
            equation,
            sizes,
            bias=has_bias,
            initial=cfg.initial,
            execution=self.execution,
            residual=slot == "out",
            gain=gain,
            name=name,
        )

    def _turned(
        self, q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, phase: Phase | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Normalizes, clips and rotates projected heads, as the record says."""
        q_BTNH = self._norm("query_norm", q_BTNH)
        k_BSKH = self._norm("key_norm", k_BSKH)
        if self.cfg.clip:
            clip = self.cfg.clip
            q_BTNH = jnp.clip(q_BTNH, -clip, clip)
            k_BSKH = jnp.clip(k_BSKH, -clip, clip)
            v_BSKH = jnp.clip(v_BSKH, -clip, clip)
        if phase is None:
            return q_BTNH, k_BSKH, v_BSKH
        if phase.values:
            v_BSKH = rotate(v_BSKH, phase)
        q_BTNH = rotate(q_BTNH, phase)
        if phase.query_scale_BT is not None:
            q_BTNH = q_BTNH * phase.query_scale_BT[..., None, None].astype(q_BTNH.dtype)
        return q_BTNH, rotate(k_BSKH, phase), v_BSKH

    def _norm(self, name: str, x_BTNH: jax.Array) -> jax.Array:
        """Normalizes queries or keys, as `qk_norm` and `qk_norm_over` say."""
        norm = self.cfg.qk_norm
        if norm is None:
            return x_BTNH
        if self.cfg.qk_norm_over == "all_heads":
            x_BTA = x_BTNH.reshape(*x_BTNH.shape[:2], -1)
            return Norm(norm, self.execution, name=name)(x_BTA).reshape(x_BTNH.shape)
        if self.cfg.qk_norm_over == "each_head":
            norm = dataclasses.replace(norm, weight_axes=2)
        return Norm(norm, self.execution, name=name)(x_BTNH)

    def _keys(self, x_BSD: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.project("key", "BSD,DKH->BSKH", x_BSD), self.project(
            "value", "BSD,DKH->BSKH", x_BSD
        )

    def _cross_keys(self, context: Context, cache: LayerCache | None) -> Seen:
        if context.encoder_output_BSD is None:
            if cache is None or cache.cross_k_BKSH is None or cache.cross_v_BKSH is None:
                raise ConfigError(
                    "encoder_output_BSD=None: cross-attention needs the encoder's output, or a"
                    " cache that has read it."
                )
            k_BSKH = kv_cache.heads_first(cache.cross_k_BKSH)
            v_BSKH = kv_cache.heads_first(cache.cross_v_BKSH)
            return Seen(cache, k_BSKH, v_BSKH)
        k_BSKH, v_BSKH = self._keys(context.encoder_output_BSD)
        if cache is not None:
            k_BKSH, v_BKSH = map(kv_cache.heads_first, (k_BSKH, v_BSKH))
            cache = cache.replace(cross_k_BKSH=k_BKSH, cross_v_BKSH=v_BKSH)
        return Seen(cache, k_BSKH, v_BSKH)

    def _phase(self, context: Context, cache: LayerCache | None, x_BTD: jax.Array) -> Phase | None:
        encoding = self.cfg.position
        if context.prepared:
            return context.phase
        if "embed" in list_hooks(encoding):
            raise ConfigError(
                f"position={type(encoding).__name__}: adds to embeddings, which attention by itself"
                " does not see; use a Stack, or another encoding."
            )
        if "phase" not in list_hooks(encoding):
            return None
        positions_BT = context.position_ids_BT
        if positions_BT is None:
            before: jax.Array | int = 0
            if cache is not None:
                before = caches.start_of(cache, context.index, first=context.first)
            positions_BT = before + arange(x_BTD)[None]
        return encoding.phase(positions_BT, self.cfg.head_width(x_BTD.shape[-1]))

    def _mask(
        self, context: Context, q_index_T: jax.Array, k_index_S: jax.Array
    ) -> masks.Mask | jax.Array | None:
        mask = context.mask
        window = self.cfg.window
        if self.causal and not context.structured:
            mask = masks.both(masks.causal(), mask, q_index_T, k_index_S)
        if not window:
            return mask
        # Without a causal order, a window reaches equally far to both sides.
        ahead = 0 if self.causal else window - 1
        near = masks.window(window - 1, ahead)
        if context.beyond is not None:
            near = near | context.beyond
        return masks.both(mask, near, q_index_T, k_index_S)

    def _bias(
        self, context: Context, x_BTD: jax.Array, q_index_T: jax.Array, k_index_S: jax.Array
    ) -> Bias | jax.Array | None:
        encoding = self.cfg.position
        if "bias" not in list_hooks(encoding) or context.bias is not None:
            return context.bias
        tables = context.tables
        if encoding.per_layer or tables is None:
            sizes = self.cfg.table_sizes(x_BTD.shape[-1])
            tables = PositionTables(
                encoding, "bias", **sizes, execution=self.execution, name="position"
            )()
        return bias_over_slots(
            encoding, tables, q_index_T, k_index_S, context.columns_BS, causal=self.causal
        )


def bias_over_slots(
    encoding: Encoding,
    tables: Tables,
    q_index_T: jax.Array,
    k_index_S: jax.Array,
    columns_BS: jax.Array | None,
    *,
    causal: bool,
) -> Bias | None:
    """Returns the encoding's bias as a function of slots, or None.

    Distances between slots equal those between positions, both for packed documents and for prompts
    padded on the left, so no batch axis is needed; if an attention mask may have gaps, or a bias
    reads the positions themselves, `columns_BS` gives the positions of the slots.
    """
    if columns_BS is None:
        return encoding.attention_bias(
            tables, q_index_T[None], k_index_S[None], bidirectional=not causal
        )
    q_BT = jnp.take(columns_BS, q_index_T, axis=1, mode="clip")
    k_BS = jnp.take(columns_BS, k_index_S, axis=1, mode="clip")
    bias = encoding.attention_bias(tables, q_BT, k_BS, bidirectional=not causal)
    return bias and dataclasses.replace(bias, consecutive=False)


def copies_of_heads(q_BTNH: jax.Array, k_BSKH: jax.Array, sharding: ActivationSharding) -> int:
    """Returns how often to repeat each key head so that the heads divide over the devices.

    It is 1 if they do, and if the query heads do not divide either, which stay whole then.
    """
    shards = sharding.num_shards("N").count
    if q_BTNH.shape[2] % shards:
        return 1
    return shards // math.gcd(k_BSKH.shape[2], shards)


def arange(x_BT: jax.Array) -> jax.Array:
    return jnp.arange(x_BT.shape[1], dtype=jnp.int32)


def slots_or_positions(slots_T: jax.Array | None, x_BT: jax.Array) -> jax.Array:
    """Returns the slots of the tokens of x; without a cache, their positions."""
    if slots_T is None:
        return arange(x_BT)
    return slots_T


def share_mask_and_bias(
    cfg: AttentionConfig, context: Context, x_BTD: jax.Array, execution: Execution, *, causal: bool
) -> Context:
    """Builds the mask and the bias as arrays once for all layers.

    Only if dense attention would otherwise do so in each layer.
    """
    full_attentions = [
        registry.resolve("attentions", name).attend for name in ("dense", "chunked_causal")
    ]
    length = x_BTD.shape[1]
    if context.index is not None or not isinstance(length, int):
        return context
    if (
        select_implementation(execution.attention, length, length, sharding_of(execution))
        not in full_attentions
    ):
        return context
    index_T = arange(x_BTD)
    if isinstance(context.mask, masks.Mask):
        check_mask(context.mask, x_BTD.shape[0], length, length)
        context = context.replace(mask=masks.evaluate_once(context.mask, length))
    if "bias" in list_hooks(cfg.position) and not cfg.position.per_layer:
        assert context.tables is not None, "set by `prepare`"
        bias = bias_over_slots(
            cfg.position, context.tables, index_T, index_T, context.columns_BS, causal=causal
        )
        # a shared bias reads only their number and width
        heads = jnp.zeros((1, 1, cfg.num_heads, cfg.head_width(x_BTD.shape[-1])))
        context = context.replace(bias=bias and bias(heads, index_T, index_T))
    return context
