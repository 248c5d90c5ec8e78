"""What an experiment is: frozen dataclasses, and the one door where a ConfigDict is checked and becomes them.

Every rule that can be checked without building an array is checked here, so that a mistake costs a second and a sentence
instead of a compilation and a stack trace.
"""

import dataclasses
import hashlib
import json
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from ml_collections import ConfigDict, config_dict

from flaxformer_lite import registry


class ConfigError(ValueError):
    """A config that cannot work; the message names the field, the rule and the way out."""


def plugin(folder: str, default: str) -> Any:
    """A field that holds a plug-in's own dataclass, chosen by its `name` key."""
    return field(default_factory=lambda: registry.resolve_class(folder, default)(), metadata={"plugin": folder})


NORM_SLOTS = ("embed", "in", "branch", "out", "final")
BIAS_SLOTS = ("embed", "query", "key", "value", "out", "mlp", "logits")
DROPOUT_SLOTS = ("embed", "attention", "mlp", "branch", "final")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and names of one transformer; zero or None means "derive it" where a comment says so.

    The slots of `norm_at`: `embed` after the embeddings, `in` before each layer, `branch` on each layer's output before
    the residual is added, `out` after it is added, `final` after the last block. Post-norm (BERT) is `('embed', 'out')`,
    pre-norm (GPT-2, T5, Llama) is `('in', 'final')`, Gemma 2's sandwich is `('in', 'branch', 'final')`.
    """

    family: str  # a file in flaxformer_lite/models
    vocab_size: int = 0  # V; 0: the tokenizer's size, rounded up to a multiple of 64
    d_model: int  # D
    num_heads: int  # N
    num_kv_heads: int = 0  # K; 0: num_heads. 1 is multi-query, between is grouped-query
    head_dim: int = 0  # H; 0: d_model / num_heads
    mlp_dim: int  # F
    encoder_layers: int = 0
    decoder_layers: int = 0
    max_length: int = 512  # tokens; binds only where an encoding has a table of positions
    type_vocab_size: int = 0  # token types (BERT's segments A and B)
    embed_dim: int = 0  # E; 0: d_model. Smaller factorises the embedding (ALBERT, ELECTRA)
    head: str = "lm"  # what sits on top; the family's file lists its heads
    decoder_num_heads: int = 0  # N of the decoder where it differs; 0: num_heads
    decoder_mlp_dim: int = 0  # F of the decoder where it differs; 0: mlp_dim
    decoder_vocab_size: int = 0  # V of the decoder where it has a table of its own; 0: one table serves both
    num_labels: int = 2  # C, of classification heads
    pad_token_id: int | None = None  # a decoder's classification head reads the last other token; RoBERTa counts the others

    norm: str = "layer"
    norm_eps: float = 1e-6
    norm_at: tuple[str, ...] = ("in", "final")
    bias_at: tuple[str, ...] = ()
    activation: str = "gelu"
    mlp: str = "plain"  # or gated
    wiring: str = "sequential"  # or parallel (GPT-NeoX), parallel_shared (GPT-J: one norm for both branches)
    qk_norm: str = "none"  # a norm on each head's queries and keys (Qwen3)
    position: Any = plugin("positions", "nope")
    attention: str = "auto"  # a file in flaxformer_lite/attentions, or auto
    attention_scale: float | None = None  # None: 1 / sqrt(head_dim)
    attention_softcap: float = 0.0  # 0: off; else logits become cap * tanh(logits / cap)
    logit_softcap: float = 0.0
    windows: tuple[int, ...] = (0,)  # sliding windows, repeated over the layers; 0 sees everything
    embed_power: float = 0.0  # token vectors are multiplied by d_model ** this: 0.5 in the original and Gemma
    logit_power: float = 0.0  # the same for logits: -0.5 in T5, whose tied table has unit variance
    tie_embeddings: bool = True
    share_layers: tuple[int, ...] = ()  # the set of weights that each depth uses: (0, 0, 0) has one; (): each its own

    dropout: float = 0.0
    dropout_at: tuple[str, ...] = ("embed", "attention", "branch")
    init: str = "normal"  # normal, normal_residual (GPT-2), fan_in (T5), xavier (the original)
    init_stddev: float = 0.02
    dtype: str = "float32"  # of activations and matmuls
    param_dtype: str = "float32"
    scan: bool = False  # one traced layer instead of a Python loop: compile time flat in depth
    remat: str = "none"  # none, dots (keep matmul outputs) or full (keep only the residual stream)

    @property
    def skeleton(self) -> str:
        """encoder, decoder or encoder_decoder: which stacks have layers."""
        return "_".join(name for name in ("encoder", "decoder") if getattr(self, f"{name}_layers"))

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def head_width(self) -> int:
        return self.head_dim or self.d_model // self.num_heads

    @property
    def of_decoder(self) -> "ModelConfig":
        """The config as the decoder sees it."""
        if not (self.decoder_num_heads or self.decoder_mlp_dim or self.decoder_vocab_size):
            return self
        sizes = {"num_heads": self.decoder_num_heads, "mlp_dim": self.decoder_mlp_dim, "vocab_size": self.decoder_vocab_size}
        own = {f"decoder_{name}": 0 for name in sizes}
        return dataclasses.replace(self, **own, **{name: size for name, size in sizes.items() if size})

    @property
    def embed_width(self) -> int:
        return self.embed_dim or self.d_model

    @property
    def has_position_table(self) -> bool:
        """Whether the encoding learns a row for each position, so that max_length binds."""
        sizes = {"d_model": self.d_model, "num_heads": self.num_heads, "head_dim": self.head_width}
        now, longer = (self.position.tables(**sizes, max_length=self.max_length + more) for more in (0, 1))
        return now != longer

    @property
    def scale(self) -> float:
        return self.head_width**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def embed_scale(self) -> float:
        return self.d_model**self.embed_power

    @property
    def logit_scale(self) -> float:
        return self.d_model**self.logit_power

    def __post_init__(self):
        _positive(self, "d_model", "num_heads", "mlp_dim", "max_length")
        _not_negative(self, "vocab_size", "num_kv_heads", "head_dim", "encoder_layers", "decoder_layers", "embed_dim",
                      "type_vocab_size", "attention_softcap", "logit_softcap", "decoder_num_heads", "decoder_mlp_dim",
                      "decoder_vocab_size")
        model = registry.resolve("models", self.family).Model
        if self.skeleton != model.skeleton:
            raise ConfigError(f"encoder_layers={self.encoder_layers}, decoder_layers={self.decoder_layers}: {self.family} has"
                              f" {model.skeleton.replace('_', ' and ')} layers; give it those and no other.")
        _among(self, "head", model.heads)
        if self.attention != "auto":
            registry.resolve("attentions", self.attention)
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            fitting = [k for k in range(1, self.num_heads + 1) if self.num_heads % k == 0]
            near = min(fitting, key=lambda k: abs(k - self.num_kv_heads))
            raise ConfigError(f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}: heads must be a multiple of"
                              f" kv heads; try num_kv_heads={near}.")
        if not self.head_dim and self.d_model % self.num_heads:
            raise ConfigError(f"d_model={self.d_model}, num_heads={self.num_heads}: the width must be a multiple of the"
                              f" heads; try d_model={round(self.d_model / self.num_heads) * self.num_heads} or name a"
                              f" head_dim.")
        _among(self, "norm_at", NORM_SLOTS)
        _among(self, "bias_at", BIAS_SLOTS)
        _among(self, "dropout_at", DROPOUT_SLOTS)
        _among(self, "norm", ("layer", "rms", "rms_offset"))
        _among(self, "qk_norm", ("none", "layer", "rms", "rms_offset"))
        _among(self, "activation", ("relu", "relu_squared", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"))
        _among(self, "mlp", ("plain", "gated"))
        _among(self, "wiring", ("sequential", "parallel", "parallel_shared"))
        _among(self, "init", ("normal", "normal_residual", "fan_in", "xavier"))
        _among(self, "remat", ("none", "dots", "full"))
        _among(self, "dtype", ("float32", "bfloat16"))
        _among(self, "param_dtype", ("float32", "bfloat16"))
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout={self.dropout}: a probability in [0, 1).")
        for layers in (self.encoder_layers, self.decoder_layers):
            if self.share_layers and layers not in (0, len(self.share_layers)):
                raise ConfigError(f"share_layers={self.share_layers}: names a set of weights for each of {layers} layers.")
            if self.scan and layers % max(len(self.windows), 1):
                raise ConfigError(f"scan=True, windows={self.windows}: {layers} layers are no multiple of the pattern of"
                                  f" {len(self.windows)}; set scan=False.")
        if not self.windows or min(self.windows) < 0:
            raise ConfigError(f"windows={self.windows}: at least one entry, none negative; (0,) sees everything.")


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    name: str = "byte_bpe"  # byte_bpe, sentencepiece (both trained on the text) or bytes
    path: str = ""  # a tokenizer.json or a sentencepiece model to use instead
    vocab_size: int = 8192  # of a trained tokenizer

    def __post_init__(self):
        _among(self, "name", ("byte_bpe", "sentencepiece", "bytes"))
        _positive(self, "vocab_size")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    path: str = ""  # a file or folder of text, jsonl or gz; empty: `corpus`
    corpus: str = "stdlib_code"  # built in: stdlib_code (Python), docstrings (English), code_docstrings (pairs of both)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    length: int = 128  # T, tokens an example
    target_length: int = 0  # T of the decoder in sequence-to-sequence objectives; 0: what the objective needs
    eval_fraction: float = 0.02  # of the documents, held out by a hash of their text
    cache: str = "~/.cache/flaxformer_lite"  # tokenized records, by content hash

    def __post_init__(self):
        _positive(self, "length")
        _not_negative(self, "target_length")
        _among(self, "corpus", ("stdlib_code", "docstrings", "code_docstrings"))
        if not 0 < self.eval_fraction < 1:
            raise ConfigError(f"data.eval_fraction={self.eval_fraction}: a fraction strictly between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    name: str = "adamw"  # adamw, adafactor, lion, sgd, muon
    learning_rate: float = 3e-4  # the peak
    schedule: str = "cosine"  # cosine, linear, rsqrt, constant, wsd
    warmup_steps: int = 100
    decay_steps: int = 0  # length of wsd's final decay; 0: a tenth of train.steps
    final_fraction: float = 0.1  # of the peak, at the last step (cosine, linear, wsd)
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1  # on matrices only: never on norms, biases and tables of positions
    clip_norm: float = 1.0  # 0: off

    def __post_init__(self):
        _among(self, "name", ("adamw", "adafactor", "lion", "sgd", "muon"))
        _among(self, "schedule", ("cosine", "linear", "rsqrt", "constant", "wsd"))
        _positive(self, "learning_rate")
        _not_negative(self, "warmup_steps", "decay_steps", "weight_decay", "clip_norm", "final_fraction")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 1000
    batch_size: int = 32  # sequences a step, over all devices and accumulation
    accumulate: int = 1  # microbatches a step
    loss_chunks: int = 4  # pieces of the batch whose logits exist at once; 1 holds B x T x V whole
    log_every: int = 20
    eval_every: int = 200
    eval_batches: int = 20  # at the most; held-out text may hold fewer
    checkpoint_every: int = 200
    keep: int = 3  # checkpoints
    sample_tokens: int = 0  # tokens of sample text after training, for decoders

    def __post_init__(self):
        _positive(self, "steps", "batch_size", "accumulate", "loss_chunks", "log_every", "eval_every", "eval_batches",
                  "checkpoint_every", "keep")
        if self.batch_size % self.accumulate:
            raise ConfigError(f"train.batch_size={self.batch_size}, train.accumulate={self.accumulate}: the batch must be a"
                              f" multiple of the microbatches.")


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each axis; -1 is "the rest" and may stand once."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self):
        sizes = dataclasses.astuple(self)
        if any(n == 0 or n < -1 for n in sizes) or sizes.count(-1) > 1:
            raise ConfigError(f"mesh={dataclasses.asdict(self)}: sizes are positive, and -1 may stand once.")


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    seed: int = 0
    model: ModelConfig
    objective: Any = field(metadata={"plugin": "objectives"})
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self):
        model, objective = self.model, plugin_name(self.objective)
        if model.skeleton != self.objective.skeleton:
            raise ConfigError(f"model.family={model.family!r}, objective.name={objective!r}: the objective is for"
                              f" {self.objective.skeleton.replace('_', '-')} models, the family's skeleton is"
                              f" {model.skeleton.replace('_', '-')}; change either.")
        if model.head != self.objective.head:
            raise ConfigError(f"model.head={model.head!r}: {objective} as configured trains {self.objective.head!r}; set"
                              f" model.head={self.objective.head}.")
        longest = max(self.data.length, self.data.target_length)
        if longest > model.max_length and model.has_position_table:
            raise ConfigError(f"data.length={longest}, model.max_length={model.max_length}: {plugin_name(model.position)}"
                              f" positions end there; shorten the examples or set model.max_length={longest}.")


def from_config_dict(cls: type, values: Any, where: str = "config") -> Any:
    """Checks a ConfigDict (or any mapping) and builds the frozen dataclass `cls` from it.

    Args:
      cls: a dataclass of this file or of a plug-in.
      values: nested mapping; a plug-in's mapping carries its file name under `name`.
      where: the path so far, named in errors.

    Raises:
      ConfigError: unknown key (with the nearest known one), wrong type, missing field, or a rule of the dataclass broken.
    """
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    hints = typing.get_type_hints(cls)
    unknown = [key for key in values if key not in fields]
    if unknown:
        near = registry.nearest(unknown[0], list(fields))
        raise ConfigError(f"{where}.{unknown[0]}: no such field{near}; {cls.__name__} has {', '.join(fields) or 'none'}.")
    built = {}
    for name, f in fields.items():
        if name in values:
            built[name] = _build(f, hints[name], values[name], f"{where}.{name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}.{name}: missing; {cls.__name__} needs it.")
    try:
        return cls(**built)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def to_config_dict(cfg: Any) -> ConfigDict:
    """The inverse: a ConfigDict whose every field can be overridden on the command line."""
    out = ConfigDict()
    hints = typing.get_type_hints(type(cfg))
    for f in dataclasses.fields(cfg):
        value = getattr(cfg, f.name)
        if "plugin" in f.metadata:
            out[f.name] = ConfigDict({"name": plugin_name(value), **to_config_dict(value)})
        elif dataclasses.is_dataclass(value):
            out[f.name] = to_config_dict(value)
        elif value is None:
            out[f.name] = config_dict.placeholder(_without_none(hints[f.name]))
        else:
            out[f.name] = value
    return out


def plugin_name(value: Any) -> str:
    """The file name, hence the key, of a plug-in's dataclass instance."""
    return type(value).__module__.rsplit(".", 1)[-1]


def fingerprint(cfg: Any) -> str:
    """A short hash of everything in the config, stored with the run and compared on resume."""
    text = json.dumps(to_config_dict(cfg).to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _build(f: dataclasses.Field, hint: Any, value: Any, where: str) -> Any:
    if "plugin" in f.metadata:
        if dataclasses.is_dataclass(value):
            return value
        options = dict(value)
        if "name" not in options:
            raise ConfigError(f"{where}.name: missing; one of {', '.join(registry.available(f.metadata['plugin']))}.")
        try:
            cls = registry.resolve_class(f.metadata["plugin"], options.pop("name"))
        except ValueError as error:
            raise ConfigError(f"{where}.name: {error}") from None
        return from_config_dict(cls, options, where)
    if dataclasses.is_dataclass(hint):
        return from_config_dict(hint, value, where)
    if value is None and isinstance(hint, types.UnionType):
        return None
    hint = _without_none(hint)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (tuple, list)):
            raise ConfigError(f"{where}={value!r}: a tuple, not {type(value).__name__}.")
        return tuple(_scalar(typing.get_args(hint)[0], item, where) for item in value)
    return _scalar(hint, value, where)


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where}={value!r}: must be {hint.__name__}, not {type(value).__name__}.")
    return value


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return next(h for h in typing.get_args(hint) if h is not types.NoneType)
    return hint


def _positive(cfg: Any, *names: str) -> None:
    for name in names:
        if getattr(cfg, name) <= 0:
            raise ConfigError(f"{name}={getattr(cfg, name)}: must be positive.")


def _not_negative(cfg: Any, *names: str) -> None:
    for name in names:
        if getattr(cfg, name) < 0:
            raise ConfigError(f"{name}={getattr(cfg, name)}: must not be negative.")


def _among(cfg: Any, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(cfg, name)
    for item in (value,) if isinstance(value, str) else value:
        if item not in choices:
            raise ConfigError(f"{name}={value!r}: no {item!r}{registry.nearest(item, list(choices))}; choose from"
                              f" {', '.join(choices)}.")
