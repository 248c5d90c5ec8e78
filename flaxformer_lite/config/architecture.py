"""The architecture record: the sizes of a model and the names of its parts.

They give its weights their meaning.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from flaxformer_lite import registry
from flaxformer_lite.config import choices
from flaxformer_lite.config.execution import EXECUTION_FIELDS, Execution
from flaxformer_lite.config.parts import (
    AdapterConfig,
    FeedForwardConfig,
    InitConfig,
    MixerConfig,
    NormConfig,
    check_scan,
)
from flaxformer_lite.config.rules import (
    OF_INIT,
    OF_TASK,
    ConfigError,
    Count,
    NotNegative,
    OneOf,
    Plugin,
    PluginName,
    Range,
    Record,
    Size,
    TokenId,
    fields_with_mark,
    optional_plugin,
    plugin_field,
    plugin_name,
    raise_if_invalid,
)

MOST_LAYERS = 4096  # more would take hours to trace
Depth = Annotated[int, Range(0, MOST_LAYERS, f"not be negative, and be at most {MOST_LAYERS}")]
Power = Annotated[float, Range(-4, 4, "be between -4 and 4")]
# Fields that may differ in the decoder, as `decoder_NAME`, and the value that means "the same".
OF_DECODER: dict[str, int | tuple[int, ...] | None] = {
    "d_model": 0,
    "num_heads": 0,
    "num_kv_heads": 0,
    "head_dim": 0,
    "mlp_dim": 0,
    "vocab_size": 0,
    "windows": (),
    "pattern": (),
    "mixer": None,
}
NormSlots = tuple[Annotated[str, OneOf(choices.NORM_SLOTS)], ...]
BiasSlots = tuple[Annotated[str, OneOf(choices.BIAS_SLOTS)], ...]


@dataclass(frozen=True, kw_only=True)
class LayerKind(Record):
    """The options in which one kind of layer differs from the rest of the model.

    None keeps the model's value.

    Attributes:
      window: size of the sliding window; 0 sees everything.
      position: the position encoding.
      mixer: a file of flaxformer_lite/nn/mixers, used in place of attention.
      feed_forward: a file of flaxformer_lite/nn/feed_forwards, used in place of the plain or gated
        layer.
      extra_branch: a file of flaxformer_lite/nn/mixers that reads the layer's input and is added to
        its output (the convolution of DeBERTa-v2).
      after: a file of flaxformer_lite/nn/feed_forwards, which follows the feed-forward.
      output_scale: whether the output is multiplied with a number that is not trained (Gemma 4).
      norm_at: slots that hold a norm; `attention_in`, `mlp_in` and so on name a slot of one part
        only.
      num_heads, num_kv_heads, head_dim: sizes of attention; 0 derives the last two, as in the
        model.
      attention_scale: factor on the dot products.
      qk_norm: the norm on queries and keys, or `none`.
    """

    window: Count | None = None
    position: Any = optional_plugin("positions")
    mixer: MixerConfig | None = optional_plugin("mixers")
    feed_forward: FeedForwardConfig | None = optional_plugin("feed_forwards")
    extra_branch: MixerConfig | None = optional_plugin("mixers")
    after: FeedForwardConfig | None = optional_plugin("feed_forwards")
    output_scale: bool = False
    norm_at: tuple[str, ...] | None = None
    num_heads: Size | None = None
    num_kv_heads: Count | None = None
    head_dim: Count | None = None
    attention_scale: float | None = None
    qk_norm: Annotated[str, OneOf(("none", *choices.NORMS))] | None = None


@dataclass(frozen=True, kw_only=True)
class Architecture(Record):
    """The sizes and part names of one model.

    Zero or None means "derive it" where a comment says so.

    The slots of `norm_at`: `embed` after the embeddings, `in` before each layer, `branch` on each
    layer's output before the residual is added, `out` after it is added, `final` after the last
    block. Post-norm (BERT) is `('embed', 'out')`, pre-norm (GPT-2, T5, Llama) is `('in', 'final')`,
    Gemma 2's sandwich is `('in', 'branch', 'final')`.
    """

    # a file in flaxformer_lite/models, or module:Model
    family: Annotated[str, PluginName("models")]
    vocab_size: Count = 0  # V; 0: the tokenizer's size, rounded up to a multiple of 64
    d_model: Size  # D
    num_heads: Size  # N
    num_kv_heads: Count = 0  # K; 0: num_heads. 1 is multi-query, between is grouped-query
    head_dim: Count = 0  # H; 0: d_model / num_heads
    mlp_dim: Size  # F
    encoder_layers: Depth = 0
    decoder_layers: Depth = 0
    max_length: Size = 512  # tokens; binds only where an encoding has a table of positions
    type_vocab_size: Count = 0  # token types (BERT's segments A and B)
    embedding_size: Count = 0  # E; 0: d_model. Smaller factorises the embedding (ALBERT, ELECTRA)
    # the width of a text's vector, where a head projects it (CLIP); 0: d_model
    projection_size: Count = 0
    head: Annotated[str, OF_TASK] = "lm"  # the output head; the family's file lists its heads
    decoder_num_heads: Count = 0  # N of the decoder where it differs; 0: num_heads
    decoder_mlp_dim: Count = 0  # F of the decoder where it differs; 0: mlp_dim
    # the same for D, K, H and the sliding windows; (): windows
    decoder_d_model: Count = 0
    decoder_num_kv_heads: Count = 0
    decoder_head_dim: Count = 0
    decoder_windows: tuple[Count, ...] = ()
    decoder_pattern: tuple[LayerKind, ...] = ()  # the same for `pattern`
    # V of the decoder if it has its own table; 0: one table serves both, unless `decoder_table`
    decoder_vocab_size: Count = 0
    decoder_table: bool = False  # whether the decoder has its own table, also of the same size
    num_labels: Annotated[Size, OF_TASK] = 2  # C, the number of classes of a classification head
    # a decoder's classifier reads the last token that differs; RoBERTa numbers those
    pad_token_id: Annotated[TokenId, OF_TASK] | None = None
    # BART's classification head reads the last such token
    eos_token_id: Annotated[TokenId, OF_TASK] | None = None
    # how an encoder without a pooler makes one vector for its classifier (ModernBERT)
    classifier_pooling: Annotated[str, OneOf(choices.CLASSIFIER_POOLINGS), OF_TASK] = "first"
    # the mask token, where its vectors are zero and the others are scaled up for it (ESM-2)
    dropped_token_id: TokenId | None = None
    # fed to the decoder first, unless the caller passes its own inputs
    decoder_start_token_id: Annotated[TokenId, OF_TASK] | None = None

    norm: Annotated[str, OneOf(choices.NORMS)] = "layer"
    norm_eps: NotNegative = 1e-6
    norm_at: NormSlots = ("in", "final")
    bias_at: BiasSlots = ()
    activation: Annotated[str, OneOf(choices.ACTIVATIONS)] = "gelu"
    mlp: Annotated[str, OneOf(choices.MLPS)] = "plain"
    residual: Annotated[str, OneOf(choices.RESIDUALS)] = "sequential"  # parallel in GPT-NeoX
    # a norm on each head's queries and keys (Qwen3)
    qk_norm: Annotated[str, OneOf(("none", *choices.NORMS))] = "none"
    # head: the same weights for every head; each_head: others for each (Cohere); all_heads: one
    # norm over all heads together (OLMo 2)
    qk_norm_over: Annotated[str, OneOf(choices.QK_NORM_OVER)] = "head"
    qkv_clip: NotNegative = 0.0  # queries, keys and values are clipped to this; 0: off (OLMo)
    # a sigmoid of the input multiplies the heads' outputs (Qwen3-Next)
    attention_gate: bool = False
    # each head learns the logit of one more column, which has no value (gpt-oss)
    attention_sinks: bool = False
    # generation reads prompts both ways, as a prefix language model (PaliGemma)
    bidirectional_prompt: bool = False
    task_type_vocab_size: Count = 0  # a table of tasks, whose first row counts (ERNIE)
    position: Any = plugin_field("positions", "nope")
    attention_scale: NotNegative | None = None  # None: 1 / sqrt(head_dim)
    attention_softcap: NotNegative = 0.0  # 0: off; else logits become cap * tanh(logits / cap)
    logit_softcap: NotNegative = 0.0
    # sliding windows, repeated over the layers; 0 sees everything
    windows: tuple[Count, ...] = (0,)
    # kinds of layer, repeated over the depth, if more than their windows differs
    pattern: tuple[LayerKind, ...] = ()
    mixer: MixerConfig | None = optional_plugin(
        "mixers"
    )  # a file in flaxformer_lite/nn/mixers, instead of attention
    # an encoder-decoder's decoder has this one, if it differs
    decoder_mixer: MixerConfig | None = optional_plugin("mixers")
    # a file in flaxformer_lite/nn/feed_forwards, instead of `mlp`
    feed_forward: FeedForwardConfig | None = optional_plugin("feed_forwards")
    # token vectors are scaled by d_model ** this: 0.5 in the original and Gemma
    embed_power: Power = 0.0
    # the same for logits: -0.5 in T5, where the tied table has unit variance
    logit_power: Power = 0.0
    # factors on token vectors, on the output of each attention and feed-forward, and on logits
    # (Granite, Cohere)
    embed_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    tie_embeddings: bool = True
    # mup: initial weights, logits, attention's scale and learning rates follow the width, so that
    # one learning rate serves all widths; the same as standard at the width `base_width`
    width_rule: Annotated[str, OneOf(choices.WIDTH_RULES)] = "standard"
    base_width: Count = 0
    base_head_dim: Count = 0  # where heads grow wider with the model; 0: their number grows
    # number of each layer's weights: (0, 0, 0) shares one set; (): no sharing
    share_layers: tuple[Count, ...] = ()
    # GPT-2: normal_residual, T5: fan_in, the original: xavier
    init: Annotated[str, OneOf(choices.INITS), OF_INIT] = "normal"
    init_stddev: Annotated[NotNegative, OF_INIT] = 0.02

    @property
    def skeleton(self) -> str:
        """`encoder`, `decoder` or `encoder_decoder`, from the stacks that have layers.

        It is `embedding` if none has any.
        """
        return (
            "_".join(name for name in ("encoder", "decoder") if getattr(self, f"{name}_layers"))
            or "embedding"
        )

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def head_width(self) -> int:
        return self.head_dim or self.d_model // self.num_heads

    @property
    def of_decoder(self) -> Self:
        """The config as the decoder sees it."""
        values = {name: getattr(self, f"decoder_{name}") for name in OF_DECODER}
        if not any(values.values()):
            return self
        changes: dict[str, Any] = {name: value for name, value in values.items() if value}
        changes |= {f"decoder_{name}": none for name, none in OF_DECODER.items()}
        side = dataclasses.replace(self, **changes)
        # cross-attention would derive it from the encoder's width
        return dataclasses.replace(side, head_dim=side.head_width) if self.decoder_d_model else side

    @property
    def has_decoder_table(self) -> bool:
        """Whether the decoder has its own table of tokens."""
        return self.decoder_table or bool(self.decoder_vocab_size)

    @property
    def embedding_width(self) -> int:
        return self.embedding_size or self.d_model

    @property
    def has_position_table(self) -> bool:
        """Whether the encoding learns one row per position, which makes max_length a hard limit."""
        return self.position.span(self.max_length) is not None

    def position_tables(self, max_length: int) -> Mapping[str, object]:
        """Returns what the encoding learns for texts of this length: its tables, by name.

        Raises:
          ValueError: the encoding does not fit the width of the heads.
        """
        return self.position.tables(
            d_model=self.d_model,
            num_heads=self.num_heads,
            head_dim=self.head_width,
            max_length=max_length,
        )

    @property
    def scale(self) -> float:
        base = self.base_head_dim or self.head_width
        scale = base**-0.5 if self.attention_scale is None else self.attention_scale
        return scale * (base / self.head_width)

    @property
    def width_ratio(self) -> float:
        """The width relative to the base model, whose learning rate this model uses."""
        return self.d_model / self.base_width if self.base_width else 1.0

    @property
    def embed_scale(self) -> float:
        return self.embed_multiplier * (self.base_width or self.d_model) ** self.embed_power

    @property
    def logit_scale(self) -> float:
        power = (self.base_width or self.d_model) ** self.logit_power
        return self.logit_multiplier * power / self.width_ratio

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of layer that repeat over the depth."""
        return self.pattern or tuple(LayerKind(window=window) for window in self.windows)

    def of_kind(self, kind: LayerKind) -> Self:
        """Returns the config as layers of this kind see it, with their heads."""
        sizes = ("num_heads", "num_kv_heads", "head_dim")
        changes: dict[str, Any] = {}
        for name in sizes:
            if getattr(kind, name) is not None:
                changes[name] = getattr(kind, name)
        if not changes:
            return self
        return dataclasses.replace(self, pattern=(), **changes)

    @property
    def layers(self) -> list[tuple[Self, LayerKind]]:
        """The layers of the encoder, then of the decoder: each with the config as it sees it."""
        layers = []
        for side, count in ((self, self.encoder_layers), (self.of_decoder, self.decoder_layers)):
            kinds = [(side.of_kind(kind), kind) for kind in side.kinds[:count]]
            layers += [kinds[i % len(kinds)] for i in range(count)]
        return layers

    @property
    def mixer_names(self) -> tuple[str, ...]:
        """The mixers of the layers, each named once."""
        names: dict[str, None] = {}
        for cfg in (self, self.of_decoder):
            for kind in self.kinds:
                mixer = kind.mixer or cfg.mixer
                names[plugin_name(mixer) if mixer else "attention"] = None
        return tuple(names)

    @property
    def feed_forwards(self) -> tuple[FeedForwardConfig, ...]:
        """The plug-ins that layers of either stack have as feed-forward, each named once."""
        parts = [self.feed_forward]
        for side in (self, self.of_decoder):
            parts += [kind.feed_forward for kind in side.kinds]
        return tuple(dict.fromkeys(part for part in parts if part is not None))

    @property
    def initial(self) -> InitConfig:
        """The distribution that weights start from."""
        layers = max(1, self.encoder_layers + self.decoder_layers)
        return InitConfig(
            kind=self.init, stddev=self.init_stddev, layers=layers, width_ratio=self.width_ratio
        )

    @property
    def initial_head(self) -> InitConfig:
        """The distribution that the kernel of a head over the vocabulary starts from.

        Its size does not follow the width, as the logits are divided by it.
        """
        if self.width_rule == "mup" and self.init == "fan_in":
            return InitConfig(stddev=self.base_width**-0.5)
        return dataclasses.replace(self.initial, width_ratio=1.0)

    @property
    def norm_config(self) -> NormConfig:
        return NormConfig(kind=self.norm, eps=self.norm_eps)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            fitting = [
                k for k in range(1, min(self.num_heads, 1024) + 1) if self.num_heads % k == 0
            ]
            near = min(fitting, key=lambda k: abs(k - self.num_kv_heads))
            raise ConfigError(
                f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}: heads must be a"
                f" multiple of kv heads; try num_kv_heads={near}."
            )
        if not self.head_dim and self.d_model % self.num_heads:
            near = round(self.d_model / self.num_heads) * self.num_heads
            raise ConfigError(
                f"d_model={self.d_model}, num_heads={self.num_heads}: the width must be a multiple"
                f" of the heads; try d_model={near} or name a head_dim."
            )
        self._check_width_rule()
        for layers in (self.encoder_layers, self.decoder_layers):
            if self.share_layers and layers not in (0, len(self.share_layers)):
                raise ConfigError(
                    f"share_layers={self.share_layers}: needs one entry for each of the {layers}"
                    " layers."
                )
        if not self.windows:
            raise ConfigError("windows=(): needs at least one entry; (0,) sees everything.")
        if self.pattern and self.windows != (0,):
            raise ConfigError(
                f"windows={self.windows}, pattern of {len(self.pattern)}: each kind in a pattern"
                " has its own window; set windows=(0,)."
            )

    def _check_width_rule(self) -> None:
        """Rejects what the rule of widths does not cover."""
        if self.width_rule == "standard":
            for name in ("base_width", "base_head_dim"):
                if getattr(self, name):
                    raise ConfigError(
                        f"{name}={getattr(self, name)}, width_rule='standard': belongs to"
                        " width_rule=mup; set that, or 0."
                    )
            return
        if not self.base_width:
            raise ConfigError(
                "base_width=0, width_rule='mup': set it to the width of the model that the learning"
                " rate was tuned on, such as base_width=128."
            )
        mixers = [self.mixer, self.decoder_mixer, *(kind.mixer for kind in self.pattern)]
        uncovered = {
            f"head={self.head!r}": self.head != "lm",
            "mixer": any(mixers),
            f"embedding_size={self.embedding_size}": self.embedding_width != self.d_model,
            f"decoder_d_model={self.decoder_d_model}": self.decoder_d_model,
            f"init={self.init!r}": self.init == "xavier",
            f"base_head_dim={self.base_head_dim} with init={self.init!r}": (
                self.base_head_dim and self.init == "fan_in"
            ),
            f"base_head_dim={self.base_head_dim} with a pattern or decoder_head_dim": (
                self.base_head_dim and (self.pattern or self.decoder_head_dim)
            ),
        }
        for shown, broken in uncovered.items():
            if broken:
                raise ConfigError(
                    f"{shown}, width_rule='mup': the rule covers models with the head lm, of"
                    " attention and feed-forwards, initialized by normal or fan_in; set"
                    " width_rule=standard."
                )

    @property
    def without_width_rule(self) -> Self:
        """The same function of the same weights, with scales in place of the rule.

        New weights and learning rates differ.
        """
        if self.width_rule == "standard":
            return self
        return dataclasses.replace(
            self,
            width_rule="standard",
            base_width=0,
            base_head_dim=0,
            attention_scale=self.scale if self.base_head_dim else self.attention_scale,
            embed_multiplier=self.embed_scale / self.d_model**self.embed_power,
            logit_multiplier=self.logit_scale / self.d_model**self.logit_power,
        )


# Fields that do not affect the weights of a checkpoint.
INIT_FIELDS = fields_with_mark(Architecture, OF_INIT)
TASK_FIELDS = fields_with_mark(Architecture, OF_TASK)
WEIGHTLESS_FIELDS = (*EXECUTION_FIELDS, *INIT_FIELDS, *TASK_FIELDS)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Execution, Architecture):
    """The architecture and execution of a model as one record.

    A page can therefore set any field as `model.FIELD`.
    """

    # a file in flaxformer_lite/nn/adapters; trained in place of the weights
    adapter: AdapterConfig | None = optional_plugin("adapters")

    def __post_init__(self) -> None:
        super().__post_init__()  # of both
        if self.decoder_num_heads and self.decoder_layers:
            side = self.of_decoder
            try:
                side.position_tables(side.max_length)
            except ValueError as error:
                raise ConfigError(
                    f"decoder_num_heads={self.decoder_num_heads}, d_model={self.d_model}: {error}"
                ) from None
        for layers, side in ((self.encoder_layers, self), (self.decoder_layers, self.of_decoder)):
            if self.scan:
                field = "pattern" if side.pattern else f"windows={side.windows}"
                check_scan(layers, len(side.kinds), field)

    @functools.cached_property
    def execution(self) -> Execution:
        """The execution fields as a record of their own."""
        return Execution(**{name: getattr(self, name) for name in EXECUTION_FIELDS})


# Names of fields in other libraries, with ours; cli/command_line.py adds those of training.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("num_layers", "num_hidden_layers", "n_layer", "n_layers"),
        ("encoder_layers", "decoder_layers"),
    ),
    **dict.fromkeys(("hidden_size", "n_embd", "hidden_dim", "embed_dim"), ("d_model",)),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), ("num_heads",)),
    **dict.fromkeys(("num_key_value_heads", "n_kv_heads"), ("num_kv_heads",)),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_dim"), ("mlp_dim",)),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "block_size"), ("max_length",)),
    **dict.fromkeys(("hidden_dropout_prob", "dropout_rate", "resid_pdrop"), ("dropout",)),
    **dict.fromkeys(("hidden_act", "activation_function"), ("activation",)),
    "num_classes": ("num_labels",),
}


def check_names(fields: Iterable[str]) -> None:
    """Checks that these are fields of ModelConfig.

    Raises:
      ConfigError: one is not; names the nearest.
    """
    known = [field.name for field in dataclasses.fields(ModelConfig)]
    for name in fields:
        if name in OTHER_NAMES:
            ours = " or ".join(OTHER_NAMES[name])
            raise ConfigError(f"{name}: no field of ModelConfig; write {ours}.")
        if name not in known:
            way_out = registry.did_you_mean(name, known) or "; leave it out."
            raise ConfigError(f"{name}: no field of ModelConfig{way_out}")


def check_family(cfg: ModelConfig, where: str = "") -> type[Any]:
    """Returns the linen class of a config's family.

    Args:
      cfg: the config; its family is a file of flaxformer_lite/models, or module:Model.
      where: prefix of the fields' names in errors, `model.` on a page.

    Raises:
      ConfigError: there is no such family, it lacks the head, or the config gives layers to the
        wrong stacks.
    """
    try:
        raise_if_invalid("family", cfg.family, Plugin("models")(cfg.family))
        model = registry.resolve("models", cfg.family).Model
        if cfg.skeleton != model.skeleton:
            sides = "no" if model.skeleton == "embedding" else model.skeleton.replace("_", " and ")
            raise ConfigError(
                f"encoder_layers={cfg.encoder_layers}, {where}decoder_layers={cfg.decoder_layers}:"
                f" {cfg.family} has {sides} layers; set those and no others."
            )
        raise_if_invalid("head", cfg.head, OneOf(model.heads)(cfg.head))
        poolings = getattr(model, "classifier_poolings", ("first",))
        raise_if_invalid(
            "classifier_pooling", cfg.classifier_pooling, OneOf(poolings)(cfg.classifier_pooling)
        )
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None
    return model
