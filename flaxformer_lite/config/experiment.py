"""What an experiment is: frozen dataclasses, and the one door where a ConfigDict is checked and becomes them.

Every rule that can be checked without building an array is checked here, so that a mistake costs a second and a sentence
instead of a compilation and a stack trace.
"""

import dataclasses
import hashlib
import json
import re
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from ml_collections import ConfigDict, config_dict

from flaxformer_lite import registry
from flaxformer_lite.config.architecture import ModelConfig
from flaxformer_lite.config.rules import ConfigError, among, local_path, not_negative, positive


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    name: str = "byte_bpe"  # byte_bpe, sentencepiece (both trained on the text) or bytes
    path: str = ""  # a tokenizer.json or a sentencepiece model to use instead
    vocab_size: int = 8192  # of a trained tokenizer

    def __post_init__(self):
        among(self, "name", ("byte_bpe", "sentencepiece", "bytes"))
        local_path("path", self.path)
        positive(self, "vocab_size")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    path: str = ""  # a file or folder of text, jsonl or gz; empty: `corpus`
    text_field: str = "text"  # of a line of jsonl at data.path; pairs have "source" and "target"
    corpus: str = "stdlib_code"  # built in: stdlib_code (Python), docstrings (English), code_docstrings (pairs of both)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    length: int = 128  # T, tokens an example
    target_length: int = 0  # T of the decoder in sequence-to-sequence objectives; 0: what the objective needs
    eval_fraction: float = 0.02  # of the text, held out by a hash of its documents, or at the end of few
    cache: str = "~/.cache/flaxformer_lite"  # tokenized records, by content hash

    def __post_init__(self):
        positive(self, "length")
        if self.text_field != "text" and not self.path:
            raise ConfigError(
                f"data.text_field={self.text_field!r}: names a field of your own jsonl; name that as data.path."
            )
        not_negative(self, "target_length")
        among(self, "corpus", ("stdlib_code", "docstrings", "code_docstrings"))
        local_path("path", self.path)
        local_path("cache", self.cache)
        if not 0 < self.eval_fraction < 1:
            raise ConfigError(f"data.eval_fraction={self.eval_fraction}: a fraction strictly between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    name: str = "adamw"  # adamw, adafactor, lion, sgd, muon
    learning_rate: float = 3e-4  # the peak
    schedule: str = "cosine"  # cosine, linear, rsqrt, constant, wsd
    warmup_steps: int = 100  # to the peak, in a straight line
    decay_steps: int = 0  # length of wsd's final decay; 0: a tenth of train.steps
    final_fraction: float = 0.1  # of the peak, at the last step (cosine, linear, wsd)
    b1: float = 0.9  # decay of the mean of gradients
    b2: float = 0.95  # decay of the mean of their squares
    eps: float = 1e-8  # beside the root of the squares, against division by zero
    weight_decay: float = 0.1  # on matrices only: never on norms, biases and tables of positions
    clip_norm: float = 1.0  # the longest gradient, over all parameters; 0: off
    freeze: tuple[str, ...] = ()  # regular expressions: parameters whose paths they match stay as they begin

    def __post_init__(self):
        among(self, "name", ("adamw", "adafactor", "lion", "sgd", "muon"))
        among(self, "schedule", ("cosine", "linear", "rsqrt", "constant", "wsd"))
        positive(self, "learning_rate")
        for pattern in self.freeze:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"freeze={pattern!r}: no regular expression ({error}).") from None
        not_negative(self, "warmup_steps", "decay_steps", "weight_decay", "clip_norm", "final_fraction")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 1000  # updates in all, those before a resume included
    batch_size: int = 32  # sequences a step, over all devices and accumulation
    accumulate: int = 1  # microbatches a step
    loss_chunks: int = 4  # pieces of the batch whose logits exist at once; 1 holds B x T x V whole
    log_every: int = 20  # steps from one record to the next
    eval_every: int = 200  # steps from one evaluation to the next
    eval_batches: int = 20  # at the most; held-out text may hold fewer
    checkpoint_every: int = 200  # steps from one checkpoint to the next
    keep: int = 3  # checkpoints, the newest
    sample_tokens: int = 0  # tokens of sample text after training, for decoders
    cpu_tuning: bool = True  # tricks for XLA:CPU (functions/cpu_tuning.py), which change no number
    init_from: str = ""  # weights or a workdir to begin with, its model and tokenizer too; empty: random weights

    def __post_init__(self):
        positive(
            self,
            "steps",
            "batch_size",
            "accumulate",
            "loss_chunks",
            "log_every",
            "eval_every",
            "eval_batches",
            "checkpoint_every",
            "keep",
        )
        local_path("init_from", self.init_from)
        if self.batch_size % self.accumulate:
            raise ConfigError(
                f"train.batch_size={self.batch_size}, train.accumulate={self.accumulate}: the batch must be a"
                f" multiple of the microbatches."
            )


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each axis; -1 is "the rest" and may stand once."""

    data: int = -1  # copies of the weights, over all slices
    fsdp: int = 1  # splits batch and weights
    context: int = 1  # splits the sequence
    tensor: int = 1  # splits heads, feed-forward width and vocabulary
    slices: int = 1  # parts of `data` that a data-centre network joins, as TPU slices
    mode: str = "jit"  # or shard_map, pmap: data parallelism written out by hand; the same numbers

    def __post_init__(self):
        sizes = {axis: getattr(self, axis) for axis in ("data", "fsdp", "context", "tensor")}
        if any(n == 0 or n < -1 for n in sizes.values()) or list(sizes.values()).count(-1) > 1:
            raise ConfigError(f"mesh={sizes}: sizes are positive, and -1 may stand once.")
        positive(self, "slices")
        if self.data > 0 and self.data % self.slices:
            raise ConfigError(
                f"mesh.data={self.data}, mesh.slices={self.slices}: data is a multiple of the slices; try"
                f" mesh.data={-(-self.data // self.slices) * self.slices}."
            )
        among(self, "mode", ("jit", "shard_map", "pmap"))
        if self.mode != "jit" and not self.fsdp == self.context == self.tensor == 1:
            raise ConfigError(
                f"mesh.mode={self.mode!r}, mesh.fsdp={self.fsdp}, mesh.context={self.context},"
                f" mesh.tensor={self.tensor}: this mode splits the batch only; set the three to 1, or"
                f" mesh.mode=jit."
            )


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    seed: int = 0  # of parameters, dropout and the order of examples
    model: ModelConfig
    objective: Any = field(metadata={"plugin": "objectives"})
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self):
        not_negative(self, "seed")
        model, objective = self.model, plugin_name(self.objective)
        if model.skeleton not in self.objective.skeletons:
            raise ConfigError(
                f"model.family={model.family!r}, objective.name={objective!r}: the objective is for"
                f" {' and '.join(self.objective.skeletons).replace('_', '-')} models, the family's skeleton is"
                f" {model.skeleton.replace('_', '-')}; change either."
            )
        head = self.objective.head_for(model.skeleton)
        if head not in ("", model.head):
            raise ConfigError(
                f"model.head={model.head!r}: {objective} as configured trains {head!r}; set model.head={head}."
            )
        longest = max(self.data.length, self.data.target_length)
        if longest > model.max_length and model.has_position_table:
            way = f"set data.length={model.max_length}" if self.train.init_from else (
                f"shorten the examples or set model.max_length={longest}")  # fmt: skip
            raise ConfigError(
                f"data.length={longest}, model.max_length={model.max_length}: {plugin_name(model.position)}"
                f" positions end there; {way}."
            )


def from_config_dict(cls: type, values: Any, where: str = "config") -> Any:
    """Checks a ConfigDict (or any mapping) and builds the frozen dataclass `cls` from it.

    Args:
      cls: a dataclass of this file or of a plug-in.
      values: nested mapping; a plug-in's mapping carries its file name under `name`.
      where: the path so far, named in errors.

    Raises:
      ConfigError: unknown key (with the nearest known one), wrong type, missing field, or a rule of the dataclass broken.
    """
    return _from_mapping(cls, values, where, "")


def _from_mapping(cls: type, values: Any, where: str, path: str) -> Any:
    """As `from_config_dict`; `path` is the dotted name of the section, which rules of its dataclass do not know."""
    if not hasattr(values, "items"):
        raise ConfigError(
            f"{where}={values!r}: must be a section of fields ({cls.__name__}), not {type(values).__name__}."
        )
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init and "internal" not in f.metadata}
    hints = typing.get_type_hints(cls)
    unknown = [key for key in values if key not in fields]
    if unknown:
        near = registry.nearest(unknown[0], list(fields))
        raise ConfigError(
            f"{where}.{unknown[0]}: no such field{near}; {cls.__name__} has {', '.join(fields) or 'none'}."
        )
    built = {}
    for name, f in fields.items():
        if name in values:
            built[name] = _build(f, hints[name], values[name], f"{where}.{name}", f"{path}.{name}".lstrip("."))
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}.{name}: missing; {cls.__name__} needs it.")
    try:
        return cls(**built)
    except ValueError as error:
        raise ConfigError(_with_path(str(error), path, list(fields))) from None


def _with_path(message: str, path: str, fields: list[str]) -> str:
    """A rule's message, whose `field=` become `path.field=`, as the user writes them."""
    if not path or message.startswith((f"{path}=", f"{path}.")):
        return message
    named = re.sub(rf"(?<![\w.])({'|'.join(fields) or '$^'})=", rf"{path}.\1=", message)
    return named if named != message else f"{path}: {message}"


def to_config_dict(cfg: Any) -> ConfigDict:
    """The inverse: a ConfigDict whose every field can be overridden on the command line."""
    out = ConfigDict()
    hints = typing.get_type_hints(type(cfg))
    for f in dataclasses.fields(cfg):
        value = getattr(cfg, f.name)
        if "internal" in f.metadata:
            continue
        if "plugin" in f.metadata:
            own = {} if value is None else to_config_dict(value)
            out[f.name] = ConfigDict({"name": "" if value is None else plugin_name(value), **own})
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            out[f.name] = tuple(to_config_dict(item).to_dict() for item in value)
        elif dataclasses.is_dataclass(value):
            out[f.name] = to_config_dict(value)
        elif value is None:
            out[f.name] = _placeholder(hints[f.name])
        else:
            out[f.name] = value
    return out


def plugin_name(value: Any) -> str:
    """The key of a plug-in's dataclass instance: its file's name or, of one outside the package, `module:Class`."""
    return registry.name_of(type(value))


def plugin_fields(cls: type, prefix: str = "") -> dict[str, str]:
    """The plug-in fields of a config's dataclass and of those in it: path -> folder, `{"model.position": "positions"}`."""
    found, hints = {}, typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if "plugin" in f.metadata:
            found[prefix + f.name] = f.metadata["plugin"]
        elif dataclasses.is_dataclass(hints[f.name]):
            found |= plugin_fields(hints[f.name], f"{prefix}{f.name}.")
    return found


def choose_plugins(values: ConfigDict, names: dict[str, str]) -> None:
    """Puts plug-ins into a config as its page would: each node gets all options of its plug-in, with their defaults.

    Args:
      values: changed in place.
      names: path -> another plug-in than the page's, whose options go with it.

    Raises:
      ConfigError: no such plug-in.
    """
    for path, folder in plugin_fields(ExperimentConfig).items():
        *above, last = path.split(".")
        parent = values
        for part in above:
            parent = parent.get(part) if isinstance(parent, ConfigDict) else None
        node = parent.get(last) if isinstance(parent, ConfigDict) else None
        if not isinstance(node, ConfigDict) or "name" not in node:
            continue  # the door says what is wrong with it
        name = names.get(path, node.name)
        if not name:
            continue
        kept = dict(node.items(preserve_field_references=True)) if name == node.name else {}
        defaults = _defaults(_plugin_class(folder, name, f"config.{path}"))
        with parent.unlocked():
            parent[last] = ConfigDict({"name": name, **defaults, **kept})


def fingerprint(cfg: Any) -> str:
    """A short hash of everything in the config, stored with the run and compared on resume."""
    text = json.dumps(to_config_dict(cfg).to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _build(f: dataclasses.Field, hint: Any, value: Any, where: str, path: str) -> Any:
    if "plugin" in f.metadata:
        if dataclasses.is_dataclass(value) or (value is None and f.default is None):
            return value
        if not hasattr(value, "items"):
            raise ConfigError(f"{where}={value!r}: must be a section with a name, not {type(value).__name__}; set"
                              f" {where}.name.")  # fmt: skip
        options = dict(value)
        if options == {"name": ""} and f.default is None:
            return None
        if "name" not in options:
            raise ConfigError(f"{where}.name: missing; one of {', '.join(registry.available(f.metadata['plugin']))}.")
        return _from_mapping(_plugin_class(f.metadata["plugin"], options.pop("name"), where), options, where, path)
    if dataclasses.is_dataclass(hint):
        return _from_mapping(hint, value, where, path)
    if value is None and isinstance(hint, types.UnionType):
        return None
    hint = _without_none(hint)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (tuple, list)):
            raise ConfigError(f"{where}={value!r}: a tuple, not {type(value).__name__}.")
        kind = typing.get_args(hint)[0]
        if dataclasses.is_dataclass(kind):
            return tuple(
                item if isinstance(item, kind) else from_config_dict(kind, item, f"{where}[{i}]")
                for i, item in enumerate(value)
            )
        return tuple(_scalar(kind, item, where) for item in value)
    return _scalar(hint, value, where)


def _plugin_class(folder: str, name: Any, where: str) -> type:
    try:
        return registry.resolve_class(folder, str(name))
    except ValueError as error:
        raise ConfigError(f"{where}.name: {error}") from None


def _defaults(cls: type) -> dict[str, Any]:
    """Values of a plug-in's options as a page holds them; of those that have no default, a place for one."""
    hints = typing.get_type_hints(cls)
    out = {}
    for f in dataclasses.fields(cls):
        if "internal" in f.metadata:
            continue
        made = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if made is None or made is dataclasses.MISSING:
            made = _placeholder(hints[f.name])
        out[f.name] = to_config_dict(made) if dataclasses.is_dataclass(made) else made
    return out


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where}={value!r}: must be {hint.__name__}, not {type(value).__name__}.")
    return value


def _placeholder(hint: Any) -> Any:
    """A field without a value, which takes one of its type."""
    hint = _without_none(hint)
    return config_dict.placeholder(typing.get_origin(hint) or hint)


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return next(h for h in typing.get_args(hint) if h is not types.NoneType)
    return hint
