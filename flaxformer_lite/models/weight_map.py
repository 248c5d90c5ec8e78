"""Names and layouts of a family's published parameters and config.

They are tables that pretrained/ uses in both directions.

A row pairs a published name with ours. A name belongs to a module, whose `weight` and `bias`
follow, or to a whole tensor; `{i}` is the number of a layer. Weights have torch's layout in the
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
from typing import NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.fields import Fields, ModelFields


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
      rows: rows of this head, including rows of the body that it names differently.
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
      fixed: fields for which we support only one value.
      read: returns overrides of ModelConfig that `fields` cannot express.
      write: inverse of `read`.
      arrange: turns the tensors of a file, by name, into the tensors that the rows name.
      settle: corrects the config by tensors of the file, by name, that decide what config.json does
        not say.
      duplicates: names that repeat another tensor; checked when loading, left out when saving.
      derived: names of tensors that follow from the config; checked when loading, written when
        saving.
      optional: names that old files lack; zeros are used.
      ignored: patterns of names that hold no weights (buffers of old versions).
      left_out: pattern of names that are left out with a notice, in which `{layers}` is the number
        of layers -> what they are.
      spellings: pattern (re.sub) of another name that files have for a tensor -> the rows' name.
      index: numbers in the published name of a layer.
      heads_apart: norms whose heads have weights of their own, one tensor for each in the file;
        `{h}` in their rows is the number of the head.
      relatives: classes of this model_type that another family file computes -> its name.
      flatten: turns a config.json with nested configs (`text_config`) into one of plain fields,
        which `fields` and `read` see.
      nest: inverse of `flatten`.
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
    arrange: Callable[[dict], dict] = dict
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

    @property
    def all_fields(self) -> dict[str, str]:
        return {**SHARED_FIELDS, **self.fields}


SHARED_FIELDS = {"vocab_size": "vocab_size", "tie_word_embeddings": "tie_embeddings"}


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
