"""The records of an experiment, and the one place where a ConfigDict is checked and turned into them.

Every rule that needs no array is checked here, so that a mistake costs a second and a sentence instead of a compilation
and a stack trace.
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
    vocab_size: int = 8192  # size of a trained tokenizer

    def __post_init__(self):
        among(self, "name", ("byte_bpe", "sentencepiece", "bytes"))
        local_path("path", self.path)
        positive(self, "vocab_size")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    path: str = ""  # a file or folder of text, jsonl or gz; empty: `corpus`
    text_field: str = "text"  # the field of each jsonl line to read; pairs have "source" and "target"
    corpus: str = "stdlib_code"  # built in: stdlib_code (Python), docstrings (English), code_docstrings (pairs of both)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    length: int = 128  # T, tokens an example
    target_length: int = 0  # T of the decoder in sequence-to-sequence objectives; 0: what the objective needs
    eval_fraction: float = 0.02  # share of the text held out, by a hash of each document, or the end of few documents
    cache: str = "~/.cache/flaxformer_lite"  # tokenized records, by content hash

    def __post_init__(self):
        positive(self, "length")
        if self.text_field != "text" and not self.path:
            raise ConfigError(
                f"data.text_field={self.text_field!r}: applies to your own jsonl only; set data.path to it."
            )
        not_negative(self, "target_length")
        among(self, "corpus", ("stdlib_code", "docstrings", "code_docstrings"))
        local_path("path", self.path)
        local_path("cache", self.cache)
        if not 0 < self.eval_fraction < 1:
            raise ConfigError(f"data.eval_fraction={self.eval_fraction}: must be strictly between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    name: str = "adamw"  # adamw, adafactor, lion, sgd, muon
    learning_rate: float = 3e-4  # the peak
    schedule: str = "cosine"  # cosine, linear, rsqrt, constant, wsd
    warmup_steps: int = 100  # linear, from 0 to the peak
    decay_steps: int = 0  # length of wsd's final decay; 0: a tenth of train.steps
    final_fraction: float = 0.1  # of the peak, at the last step (cosine, linear, wsd)
    b1: float = 0.9  # decay of the mean of gradients
    b2: float = 0.95  # decay of the mean of their squares
    eps: float = 1e-8  # added to the root of that mean, against division by zero
    weight_decay: float = 0.1  # on matrices only, never on norms, biases or position tables
    clip_norm: float = 1.0  # largest global norm of the gradient; 0: off

    def __post_init__(self):
        among(self, "name", ("adamw", "adafactor", "lion", "sgd", "muon"))
        among(self, "schedule", ("cosine", "linear", "rsqrt", "constant", "wsd"))
        positive(self, "learning_rate")
        not_negative(self, "warmup_steps", "decay_steps", "weight_decay", "clip_norm", "final_fraction")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 1000  # updates in total, including those before a resume
    batch_size: int = 32  # sequences per step, over all devices and microbatches
    accumulate: int = 1  # microbatches per step
    loss_chunks: int = 4  # the logits of one chunk exist at a time; 1 holds all of B x T x V
    log_every: int = 20  # steps from one record to the next
    eval_every: int = 200  # steps from one evaluation to the next
    eval_batches: int = 20  # at most; the held-out text may be shorter
    checkpoint_every: int = 200  # steps from one checkpoint to the next
    keep: int = 3  # number of newest checkpoints to keep
    sample_tokens: int = 0  # length of the sample text written after training, for decoders
    cpu_tuning: bool = True  # optimizations for XLA:CPU (functions/cpu_tuning.py); they change no number
    init_from: str = ""  # a model directory or workdir to take model, weights and tokenizer from; empty: random weights

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
    """The number of devices along each axis; one of them may be -1, for all that are left."""

    data: int = -1  # copies of the weights, over all slices
    fsdp: int = 1  # splits the batch and the weights
    context: int = 1  # splits the sequence
    tensor: int = 1  # splits heads, feed-forward width and vocabulary
    slices: int = 1  # parts of `data` joined by a data-center network, such as TPU slices
    mode: str = "jit"  # or shard_map, pmap: data parallelism written by hand, with the same numbers

    def __post_init__(self):
        sizes = {axis: getattr(self, axis) for axis in ("data", "fsdp", "context", "tensor")}
        if any(n == 0 or n < -1 for n in sizes.values()) or list(sizes.values()).count(-1) > 1:
            raise ConfigError(f"mesh={sizes}: sizes must be positive, except that one may be -1.")
        positive(self, "slices")
        if self.data > 0 and self.data % self.slices:
            raise ConfigError(
                f"mesh.data={self.data}, mesh.slices={self.slices}: data must be a multiple of the slices; try"
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
    seed: int = 0  # seeds the parameters, dropout and the order of examples
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
    """Builds the frozen dataclass `cls` from a ConfigDict (or any mapping), checking every value.

    Args:
      cls: a dataclass of this file or of a plug-in.
      values: nested mapping; the mapping of a plug-in holds its file name under `name`.
      where: the path so far, named in errors.

    Raises:
      ConfigError: an unknown key (with the nearest known one), a wrong type, a missing field, or a broken rule.
    """
    return _from_mapping(cls, values, where, "")


def _from_mapping(cls: type, values: Any, where: str, path: str) -> Any:
    """Implements `from_config_dict`; `path` is the dotted name of the section, to be added to errors."""
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
    """Rewrites each `field=` in a message as `path.field=`, the way the user writes it."""
    if not path or message.startswith((f"{path}=", f"{path}.")):
        return message
    named = re.sub(rf"(?<![\w.])({'|'.join(fields) or '$^'})=", rf"{path}.\1=", message)
    return named if named != message else f"{path}: {message}"


def to_config_dict(cfg: Any) -> ConfigDict:
    """Converts a record back to a ConfigDict, in which the command line can override every field."""
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
            out[f.name] = config_dict.placeholder(_without_none(hints[f.name]))
        else:
            out[f.name] = value
    return out


def plugin_name(value: Any) -> str:
    """Returns the name of a plug-in's record: its file name, or `module:Class` if it lives outside the package."""
    return registry.name_of(type(value))


def plugin_fields(cls: type, prefix: str = "") -> dict[str, str]:
    """Maps the path of each plug-in field in a record to its folder, as in `{"model.position": "positions"}`."""
    found, hints = {}, typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if "plugin" in f.metadata:
            found[prefix + f.name] = f.metadata["plugin"]
        elif dataclasses.is_dataclass(hints[f.name]):
            found |= plugin_fields(hints[f.name], f"{prefix}{f.name}.")
    return found


def choose_plugins(values: ConfigDict, names: dict[str, str]) -> None:
    """Fills in plug-ins as a config page would: each node gets all options of its plug-in, with their defaults.

    Args:
      values: changed in place.
      names: path -> the plug-in to use instead of the page's; the page's options for it are dropped.

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
            continue  # from_config_dict reports what is wrong with it
        name = names.get(path, node.name)
        if not name:
            continue
        kept = dict(node.items(preserve_field_references=True)) if name == node.name else {}
        defaults = _defaults(_plugin_class(folder, name, f"config.{path}"))
        with parent.unlocked():
            parent[last] = ConfigDict({"name": name, **defaults, **kept})


def fingerprint(cfg: Any) -> str:
    """Hashes the whole config; the hash is stored with the run and compared on resume."""
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
            raise ConfigError(f"{where}={value!r}: must be a tuple, not {type(value).__name__}.")
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
    """Returns a plug-in's options as a page holds them, with a placeholder for each that has no default."""
    hints = typing.get_type_hints(cls)
    out = {}
    for f in dataclasses.fields(cls):
        made = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if made is None or made is dataclasses.MISSING:
            made = config_dict.placeholder(_without_none(hints[f.name]))
        out[f.name] = to_config_dict(made) if dataclasses.is_dataclass(made) else made
    return out


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
