"""Names and layouts of a family's published parameters and config.

They are tables that pretrained/ uses in both directions.

A row pairs a published name with ours. A name is that of a module, followed by its `weight` and
`bias`, or of a whole tensor; `{i}` is the number of a layer. Weights have torch's layout in the
file unless the row says otherwise:

    OI     a torch Linear, [outputs, inputs]; heads major, head_dim minor
    IO     [inputs, outputs] (GPT-2)
    I3O    [inputs, (query | key | value) outputs] (GPT-2)
    N3HI   [(heads, query | key | value, head_dim), inputs] (GPT-NeoX, BLOOM)
    1O     a vector with a leading axis of one
    XIO2   [experts, inputs, (outputs, gate | up)]: gate and up alternate, all experts in one tensor

A layout is spelled with I for all input axes and O for all output axes, or N for the first output
axis and H for the rest. A digit means that the file stacks that many parameters of the same shape:
3OI is query, key and value stacked. A + means that the outputs of parameters of several sizes
follow one another: +OI is a query of 8 heads, then a key of 2, then a value of 2; in G+OI they
alternate in groups, each the query heads that share a key, that key and its value (Falcon).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import KINDS, Json, brief, is_kind
from flaxformer_lite.registry import nearest

# Our activations by their names in published configs; if several names mean the same function, the
# first is written.
ACTIVATION_NAMES = {
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": (
        "gelu_new",
        "gelu_pytorch_tanh",
        "gelu_python_tanh",
        "gelu_fast",
        "gelu_accurate",
    ),
    "quick_gelu": ("quick_gelu",),
    "relu": ("relu",),
    "relu_squared": ("relu2",),
    "silu": ("silu", "swish"),
    "tanh": ("tanh",),
}


class WeightRow(NamedTuple):
    """A row of a family's weight map: a published name, and ours or several of ours if fused."""

    name: str
    ours: str | tuple[str, ...]
    layout: str = "OI"

    @property
    def paths(self) -> tuple[str, ...]:
        """Ours, as a tuple; as many as the layout stacks."""
        paths = (self.ours,) if isinstance(self.ours, str) else self.ours
        stacked = math.prod(map(int, re.findall(r"\d", self.layout)))
        known = re.fullmatch(r"[1X]?[INOH2-9]+|G?\+OI|IG?\+O", self.layout)
        if not known or (stacked != len(paths) and "+" not in self.layout):
            example = f"{len(paths)}OI" if len(paths) > 1 else "OI"
            raise ConfigError(
                f"{self.name}: layout={self.layout!r} of {len(paths)} parameters: letters I, O, N,"
                f" H and X, and a digit that says how many are stacked, like {example}; or +OI"
                " where they differ in size."
            )
        return paths


class Head(NamedTuple):
    """A head as transformers has it.

    Attributes:
      architecture: the name of the class.
      rows: rows of this head, including those of the body that it spells differently.
      prefix: prefix of the body's names, if it differs from the family's.
      fixed: fields that identify the head, with their values.
    """

    architecture: str
    rows: tuple[WeightRow, ...] = ()
    prefix: str | None = None
    fixed: Mapping[str, object] = MappingProxyType({})


# transformers' endings of the names of classes, by our name of the head.
ENDINGS = {
    "none": "Model",
    "encoder": "EncoderModel",
    "lm": "ForCausalLM",
    "causal_lm": "ForCausalLM",
    "masked_lm": "ForMaskedLM",
    "pretraining": "ForPreTraining",
    "next_sentence": "ForNextSentencePrediction",
    "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
}


def build_heads(name: str, **rows_of_heads: "Head | tuple[WeightRow, ...]") -> dict[str, Head]:
    """Builds heads from their rows; their classes are called `name` with the usual ending."""
    built = {}
    for head, rows in rows_of_heads.items():
        if not isinstance(rows, Head):
            fixed = {"is_decoder": True} if head == "causal_lm" else {}
            rows = Head(name + ENDINGS[head], rows, fixed=fixed)
        built[head] = rows
    return built


LARGEST = 2**31 - 1  # upper bounds on sizes, layers and labels
DEEPEST = 2_000
CLASSES = 10**6


Number = TypeVar("Number", int, float)
Layer = TypeVar("Layer")
Value = TypeVar("Value")
ModelFields = dict[str, Any]  # fields of a ModelConfig, by name


class Fields:
    """A published config that records which of its fields were read; null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str = "", head: str = ""):
        self.values = dict(values)
        self.where = f"config.json: {where}"
        self.head = head  # as which the file is read
        self.read = set[str]()

    def get(self, name: str, default: object = None, kind: type | None = None) -> Any:
        """Returns a field's value, or the default.

        Args:
          name: name of the field.
          default: value if it is absent.
          kind: type that the value must have; None is that of the default.

        Raises:
          ConfigError: the value has another type, or is larger than in any model.
        """
        self.read.add(name)
        value = self.values.get(name)
        if value is None:
            return default
        kind = kind or type(default)
        if kind in KINDS and not is_kind(value, kind):
            raise ConfigError(f"{self.where}{name}={brief(value)}: must be {KINDS[kind]}.")
        most = LARGEST
        if name == "num_labels":
            most = CLASSES
        if "layer" in name:
            most = DEEPEST
        if kind is int and abs(value) > most:
            raise ConfigError(
                f"{self.where}{name}={brief(value)}: no model is so large; is it damaged?"
            )
        if kind is float:
            return float(value)
        return value

    def size(self, name: str, default: Number) -> Number:
        """Returns a field that must be at least one."""
        value = self.get(name, default)
        if value < 1:
            raise ConfigError(f"config.json: {name}={brief(value)}: must be at least 1.")
        return value

    def nullable(self, name: str, absent: object, null: object = 0) -> Any:
        """Reads a field where null means off and a missing key means the family's default."""
        default = null if name in self.values else absent
        value = self.get(name, default, type(absent))
        if self.values.get(name) is not None and value <= 0:
            raise ConfigError(
                f"config.json: {name}={brief(value)}: must be positive; null turns it off."
            )
        return value

    def require(self, name: str, allowed: object) -> None:
        """Refuses values of a field that we do not compute."""
        value = self.get(name, allowed)
        if value != allowed:
            raise ConfigError(
                f"config.json: {name}={brief(value)} changes the numbers, and only {allowed!r} is"
                " supported here."
            )


def activation_of(field: str, value: str) -> str:
    """Returns our name for a published activation.

    Raises:
      ConfigError: we do not have it.
    """
    for activation, names in ACTIVATION_NAMES.items():
        if value in names:
            return activation
    known = [name for names in ACTIVATION_NAMES.values() for name in names]
    near = nearest(str(value), known)
    raise ConfigError(
        f"config.json: {field}={brief(value)}: no such activation here{near}; choose from"
        f" {', '.join(known)}."
    )


def read_windows(
    fields: Fields, layers: int, sliding: Callable[[int], bool], window: int
) -> tuple[int, ...]:
    """Returns the shortest pattern of sliding windows that the layers repeat.

    Args:
      fields: a published config; `layer_types`, if given, says which layers slide.
      layers: number of layers.
      sliding: whether a layer slides, if `layer_types` is absent.
      window: window of the sliding layers; 0 for none.
    """
    kinds = fields.get("layer_types", kind=list)
    if kinds is None:
        kinds = ["sliding_attention" if sliding(i) else "full_attention" for i in range(layers)]
    known = all(kind in ("sliding_attention", "full_attention") for kind in kinds)
    if not known or len(kinds) != layers:
        raise ConfigError(
            f"config.json: layer_types={brief(kinds)}: must be {layers} entries, each"
            " sliding_attention or full_attention."
        )
    if "sliding_attention" in kinds and window < 1:
        raise ConfigError(
            f"config.json: a layer slides over a window of {window}: must be at least 1."
        )
    return shortest_pattern([window if kind == "sliding_attention" else 0 for kind in kinds])


def shortest_pattern(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Returns the shortest beginning of a list that, repeated, gives the whole list."""
    for period in range(1, len(layers) + 1):
        if all(layers[i] == layers[i % period] for i in range(len(layers))):
            break
    return tuple(layers[:period])


def repeated(pattern: Sequence[Layer], layers: int) -> list[Layer]:
    """Repeats a pattern over this many layers; inverts `shortest_pattern`."""
    return [pattern[i % len(pattern)] for i in range(layers)]


def inverse(value: float) -> float:
    """Returns the number whose inverse is exactly `value`, a round one where there is one."""
    near = 1 / value
    candidates = (float(round(near)), near, math.nextafter(near, 0), math.nextafter(near, math.inf))
    return next((one for one in candidates if one and 1 / one == value), near)


def layer_types(cfg: ModelConfig) -> list[str]:
    kinds = repeated(cfg.kinds, cfg.encoder_layers + cfg.decoder_layers)
    return ["sliding_attention" if kind.window else "full_attention" for kind in kinds]


def nothing(_: object) -> Json:
    return {}


def unchanged(cfg: ModelConfig, _: Mapping[str, np.ndarray]) -> ModelConfig:
    return cfg


@dataclass(frozen=True, kw_only=True)
class Published:
    """A family's published form: its names, fields and heads.

    Attributes:
      model_type: the family's name in config.json.
      prefix: prefix of `names` in all files except the bare model's.
      names: rows of the body, as a function of the config.
      heads: our name of a head -> head; its rows take precedence over the body's.
      fields: published field -> our field, besides SHARED_FIELDS. Absent ones have the value of the
        default preset.
      defaults: published field -> its value in transformers if absent, where that differs from the
        default preset's.
      harmless: fields that change no number in this family, in addition to those that never do.
      fixed: fields of which we support only one value.
      read: returns overrides of ModelConfig that `fields` cannot express.
      write: inverse of `read`.
      settle: corrects the config by tensors of the file, by name, that decide what config.json does
        not say.
      duplicates: names that repeat another tensor; checked when loading, left out when saving.
      derived: names of tensors that follow from the config; checked when loading, written when
        saving.
      optional: names that old files lack; zeros are used.
      ignored: patterns of names that hold no weights (buffers of old versions).
      left_out: pattern of names that are left out with a notice, in which `{layers}` is the number
        of layers -> what they are.
      spellings: pattern (re.sub) of another name that files have for a tensor -> that of the rows.
      index: numbers in the published name of a layer.
      heads_apart: norms with weights for each head, of which the file has a tensor per head; `{h}`
        in their rows is its number.
      relatives: classes of this model_type that another family file computes -> its name.
      flatten: turns a config.json with nested configs (`text_config`) into one of plain fields,
        which `fields` and `read` see.
      nest: inverse of `flatten`.
      sentencepiece: what a bare sentencepiece model adds to a text, `bos` before it or `eos` after
        it; "": it is not read without a tokenizer.json.
    """

    model_type: str
    prefix: str = ""
    names: Callable[[ModelConfig], tuple[WeightRow, ...]]
    heads: Mapping[str, Head]
    fields: Mapping[str, str]
    defaults: Mapping[str, object] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    read: Callable[[Fields], ModelFields] = nothing
    write: Callable[[ModelConfig], Json] = nothing
    settle: Callable[[ModelConfig, Mapping[str, np.ndarray]], ModelConfig] = unchanged
    duplicates: Mapping[str, str] = field(default_factory=dict)
    derived: Callable[[ModelConfig], dict[str, np.ndarray]] = nothing
    optional: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    index: Callable[[ModelConfig, int], dict[str, int]] = lambda cfg, layer: {"i": layer}
    heads_apart: tuple[str, ...] = ()
    relatives: Mapping[str, str] = field(default_factory=dict)
    flatten: Callable[[Json], Json] = dict
    nest: Callable[[Json], Json] = dict
    sentencepiece: Literal["", "bos", "eos"] = ""

    @property
    def all_fields(self) -> dict[str, str]:
        return {**SHARED_FIELDS, **self.fields}


SHARED_FIELDS = {"vocab_size": "vocab_size", "tie_word_embeddings": "tie_embeddings"}


def omit(fields: Mapping[str, Value], *names: str) -> dict[str, Value]:
    """Returns the fields of a family that another one follows, except some."""
    return {name: value for name, value in fields.items() if name not in names}


def omit_prefixes(rows: Sequence[WeightRow], *beginnings: str) -> tuple[WeightRow, ...]:
    """Returns the rows whose published names do not begin so."""
    return tuple(row for row in rows if not row.name.startswith(beginnings))


def outside_layers(rows: Sequence[WeightRow]) -> tuple[WeightRow, ...]:
    """Returns the rows of a model's embeddings, norms and poolers."""
    return tuple(row for row in rows if "{i}" not in row.name)


def weight_rows(*pairs: tuple) -> tuple[WeightRow, ...]:
    return tuple(WeightRow(*pair) for pair in pairs)


def attention_rows(query: str, key: str, value: str, out: str) -> tuple[WeightRow, ...]:
    """Returns the rows of an attention's four projections."""
    return weight_rows((query, "query"), (key, "key"), (value, "value"), (out, "out"))


def add_prefix(name: str, ours: str, inner: tuple[WeightRow, ...]) -> tuple[WeightRow, ...]:
    """Returns the rows of a part named `name` in the file and `ours` in our tree ("": its root)."""

    def place(path: str | tuple) -> str | tuple:
        if isinstance(path, str):
            return f"{ours}/{path}".lstrip("/")
        return tuple(map(place, path))

    placed = []
    for row in inner:
        placed.append(WeightRow(f"{name}.{row.name}", place(row.ours), row.layout))
    return tuple(placed)
