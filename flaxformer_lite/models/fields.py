"""Fields of a published config.json, read with checks, and values that families give them."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import KINDS, Json, is_kind, quote_value
from flaxformer_lite.registry import did_you_mean

Number = TypeVar("Number", int, float)
Layer = TypeVar("Layer")
Value = TypeVar("Value")
ModelFields = dict[str, Any]  # fields of a ModelConfig, by name

# upper bounds on sizes, layers and labels, beyond which a file is damaged
MAX_SIZE = 2**31 - 1
MAX_LAYERS = 2_000
MAX_CLASSES = 10**6

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
          kind: type that the value must have; None is the default's.

        Raises:
          ConfigError: the value has another type, or is larger than in any model.
        """
        self.read.add(name)
        value = self.values.get(name)
        if value is None:
            return default
        kind = kind or type(default)
        if kind in KINDS and not is_kind(value, kind):
            raise ConfigError(f"{self.where}{name}={quote_value(value)}: must be {KINDS[kind]}.")
        most = MAX_SIZE
        if name == "num_labels":
            most = MAX_CLASSES
        if name.endswith(("layer", "layers")):
            most = MAX_LAYERS
        if kind is int and abs(value) > most:
            raise ConfigError(
                f"{self.where}{name}={quote_value(value)}: no model is so large; is it damaged?"
            )
        if kind is float:
            return float(value)
        return value

    def size(self, name: str, default: Number) -> Number:
        """Returns a field that must be at least one."""
        value = self.get(name, default)
        if value < 1:
            raise ConfigError(f"{self.where}{name}={quote_value(value)}: must be at least 1.")
        return value

    def nullable(self, name: str, absent: object, null: object = 0) -> Any:
        """Reads a field where null means off and a missing key means the family's default."""
        default = null if name in self.values else absent
        value = self.get(name, default, type(absent))
        if self.values.get(name) is not None and value <= 0:
            raise ConfigError(
                f"{self.where}{name}={quote_value(value)}: must be positive; null turns it off."
            )
        return value

    def require(self, name: str, allowed: object) -> None:
        """Refuses values of a field that we do not compute."""
        value = self.get(name, allowed)
        if value != allowed:
            raise ConfigError(
                f"{self.where}{name}={quote_value(value)} changes the numbers, and only"
                f" {allowed!r} is supported here."
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
    near = did_you_mean(str(value), known)
    raise ConfigError(
        f"config.json: {field}={quote_value(value)}: no such activation here{near}; choose from"
        f" {', '.join(known)}."
    )


def omit_fields(fields: Mapping[str, Value], *names: str) -> dict[str, Value]:
    """Returns the fields of a family that another one follows, except some."""
    return {name: value for name, value in fields.items() if name not in names}


def read_types(fields: Fields, known: Collection[str], usual: list[str]) -> list[str]:
    """Reads `layer_types`, the kind of each layer by name.

    Args:
      fields: a published config.
      known: the names that there may be.
      usual: the names, one for each layer, if `layer_types` is absent.
    """
    types = fields.get("layer_types", usual)
    if len(types) != len(usual) or any(name not in known for name in types):
        raise ConfigError(
            f"config.json: layer_types={quote_value(types)}: must be {len(usual)} entries, each"
            f" {' or '.join(known)}."
        )
    return types


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
    usual = ["sliding_attention" if sliding(i) else "full_attention" for i in range(layers)]
    types = read_types(fields, ("sliding_attention", "full_attention"), usual)
    if "sliding_attention" in types and window < 1:
        raise ConfigError(
            f"config.json: a layer slides over a window of {window}: must be at least 1."
        )
    return shortest_pattern([window if name == "sliding_attention" else 0 for name in types])


def layer_types(cfg: ModelConfig) -> list[str]:
    kinds = repeat_pattern(cfg.kinds, cfg.encoder_layers + cfg.decoder_layers)
    return ["sliding_attention" if kind.window else "full_attention" for kind in kinds]


def write_windows(cfg: ModelConfig, usual: int | None) -> Json:
    """Writes the layers' windows; `usual` is written where none slides."""
    return {"sliding_window": largest_window(cfg) or usual, "layer_types": layer_types(cfg)}


def write_period(cfg: ModelConfig) -> Json:
    """Writes the number of layers of which the last sees all.

    Loaders read it that know no `layer_types`.
    """
    types = layer_types(cfg)
    if "full_attention" not in types:
        return {}
    return {"sliding_window_pattern": 1 + types.index("full_attention")}


def largest_window(cfg: ModelConfig) -> int:
    """Returns the widest window of a model's layers; 0 where none slides."""
    return max(kind.window or 0 for kind in cfg.kinds)


def shortest_pattern(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Returns the shortest beginning of a list that, repeated, gives the whole list."""
    for period in range(1, len(layers) + 1):
        if all(layers[i] == layers[i % period] for i in range(len(layers))):
            break
    return tuple(layers[:period])


def repeat_pattern(pattern: Sequence[Layer], layers: int) -> list[Layer]:
    """Repeats a pattern over this many layers; inverts `shortest_pattern`."""
    return [pattern[i % len(pattern)] for i in range(layers)]


def find_inverse(value: float) -> float:
    """Returns the number whose inverse is exactly `value`, a round one where there is one."""
    near = 1 / value
    candidates = (float(round(near)), near, math.nextafter(near, 0), math.nextafter(near, math.inf))
    return next((one for one in candidates if one and 1 / one == value), near)
