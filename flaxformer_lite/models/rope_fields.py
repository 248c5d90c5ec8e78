"""Rotary positions in published configs, in the old spelling and the new."""

from collections.abc import Mapping, Sequence

from flaxformer_lite.config import ConfigError, LayerKind
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.nn.positions.rope import Rope

# rope_type: (required fields of Rope, optional fields); our scaling has the same name, or "none"
# for "default"
SCALINGS = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "llama3": (
        ("factor", "low_freq_factor", "high_freq_factor"),
        ("original_max_position_embeddings",),
    ),
    "yarn": (
        ("factor",),
        (
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "truncate",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
        ),
    ),
    "proportional": ((), ("factor",)),
    "longrope": (
        ("short_factor", "long_factor"),
        ("original_max_position_embeddings", "factor", "attention_factor"),
    ),
}
LAYER_TYPES = ("full_attention", "sliding_attention")
KINDS_OF = {
    "original_max_position_embeddings": int,
    "truncate": bool,
    "short_factor": list,
    "long_factor": list,
}
# Fields that only some types or families read; transformers ignores them in all others.
# Those of mrope are about images: a text stands at the same place on all of their axes.
NAMES = {"finetuned", "mrope_section", "mrope_interleaved"}.union(
    *(required + optional for required, optional in SCALINGS.values())
)


def read_rope(
    fields: Fields,
    *,
    base: str = "rope_theta",
    fraction: str = "",
    default_fraction: float = 1.0,
    usual: Rope | None = None,
) -> Rope:
    """Reads the encoding from `rope_scaling`, or else from `rope_parameters` (transformers 5).

    As in transformers, the two are never merged; a base or fraction missing there is read from the
    top level.

    Args:
      fields: the fields of config.json.
      base: the old name of rope_theta.
      fraction: the old name of the rotated share of a head; empty if whole heads rotate.
      default_fraction: the value if neither name is present.
      usual: the encoding if neither of the two is there.

    Raises:
      ConfigError: an unsupported scaling, an unknown or missing parameter of one, or an impossible
        value.
    """
    where = "rope_scaling" if fields.get("rope_scaling", {}) else "rope_parameters"
    if usual and not fields.get(where, {}):
        return usual
    inner = Fields(fields.get(where, {}), f"{where}.")
    fields.read |= {"rope_parameters", "original_max_position_embeddings"}
    outer = fields.get(fraction or "partial_rotary_factor", default_fraction)
    options = {
        "base": inner.get("rope_theta", fields.get(base, 10000.0)),
        "fraction": inner.get("partial_rotary_factor", outer),
    }
    if options["base"] <= 0:
        raise ConfigError(f"config.json: rope_theta={options['base']}: must be positive.")
    kind = inner.values.get("rope_type", inner.values.get("type", "default"))
    if not fraction and options["fraction"] != 1 and kind != "proportional":
        raise ConfigError(
            f"config.json: partial_rotary_factor={options['fraction']}: must be 1 in this family."
        )
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise ConfigError(
            f"config.json: {where} of type {kind!r} is not supported; choose from"
            f" {', '.join(SCALINGS)}."
        )
    unknown = sorted(set(inner.values) - inner.read - NAMES - {"rope_type", "type"})
    if unknown:
        raise ConfigError(
            f"{inner.where}{unknown[0]}={inner.values[unknown[0]]!r} is not known for type {kind!r}"
            " and might change the numbers."
        )
    options |= _options(kind, inner, f"{where}.") | _lengths(kind, inner, fields)
    try:
        return Rope(scaling="none" if kind == "default" else kind, **options)
    except ValueError as error:
        raise ConfigError(f"config.json: {where}: {error}") from None


def _options(kind: str, inner: Fields, where: str) -> ModelFields:
    """Reads the parameters of a scaling.

    Zero or null yarn betas mean their defaults, a null truncate means false.
    """
    required, optional = SCALINGS[kind]
    options = {}
    for name in required + optional:
        options[name] = inner.get(name, kind=KINDS_OF.get(name, float))
    for name in (
        *required,
        "rope_theta",
        *{"original_max_position_embeddings"}.intersection(optional),
    ):
        is_given = inner.values.get(name) is not None
        if kind == "yarn" and name == "factor":  # null derives it
            is_given = name in inner.values
        if not is_given and (name in required or name in inner.values):
            raise ConfigError(f"{inner.where}{name} is missing or null: type {kind!r} needs it.")
    for name in ("short_factor", "long_factor"):
        if name in options:
            values = {f"{name}[{i}]": number for i, number in enumerate(options[name])}
            numbers = Fields(values, where)
            options[name] = tuple(numbers.get(number, 0.0) for number in values)
    for name in ("beta_fast", "beta_slow"):
        options[name] = options.get(name) or None
    if options.get("attention_factor") == 0:
        raise ConfigError(
            f"{inner.where}attention_factor=0: all logits would be equal; null derives it from"
            " factor."
        )
    if "truncate" in inner.values and inner.values["truncate"] is None:
        options["truncate"] = False
    return {name: value for name, value in options.items() if value is not None}


def _lengths(kind: str, inner: Fields, fields: Fields) -> ModelFields:
    """Reads the original length, and derives a missing factor.

    The factor is the longest length divided by the original one.
    """
    if kind in ("default", "linear", "proportional"):
        return {}
    longest = fields.get("max_position_embeddings", 0)
    if kind == "dynamic":
        return {"original_max_position_embeddings": longest}
    original = fields.get(
        "original_max_position_embeddings", inner.get("original_max_position_embeddings", longest)
    )
    lengths: ModelFields = {"original_max_position_embeddings": original}
    if kind in ("yarn", "longrope") and inner.values.get("factor") is None and original > 0:
        lengths["factor"] = longest / original
        if kind == "longrope":
            lengths["factor"] = max(lengths["factor"], 1.0)
    return lengths


def write_unscaled(position: Rope) -> Json:
    """Writes positions that are not scaled, where transformers scales if nothing is said."""
    if position.scaling != "none":
        return {}
    return {"rope_parameters": {"rope_type": "default", "rope_theta": position.base}}


def read_rope_of(fields: Fields, layer_type: str, base: float, *, scaled: bool = True) -> Rope:
    """Reads the encoding of one type of layer, from `rope_parameters` by type (transformers 5).

    Args:
      fields: the fields of config.json.
      layer_type: `full_attention` or `sliding_attention`.
      base: the base where `rope_parameters` names none.
      scaled: whether `rope_scaling`, the old spelling, is about this type.
    """
    nested = fields.get("rope_parameters", {})
    unknown = sorted(set(nested) - set(LAYER_TYPES))
    if unknown:
        raise ConfigError(
            f"config.json: rope_parameters.{unknown[0]}: must be those of"
            f" {' or '.join(LAYER_TYPES)}."
        )
    of_type = dict(nested.get(layer_type) or {})
    old = fields.get("rope_scaling", {})
    if scaled:
        of_type |= old
    longest = fields.get("max_position_embeddings", 0)
    shared = {"max_position_embeddings": longest, "rope_theta": base}
    return read_rope(Fields(shared | {"rope_parameters": of_type}))


def slide_layers(windows: Sequence[int], local: Rope | None) -> tuple[LayerKind, ...]:
    """Returns kinds of layers with these windows; those that slide have positions of their own."""
    kinds = []
    for window in windows:
        position = None
        if window:
            position = local
        kinds.append(LayerKind(window=window, position=position))
    return tuple(kinds)


def write_ropes(ropes: Mapping[str, Rope]) -> Json:
    """Writes `rope_parameters` by type of layer."""
    nested = {}
    for layer_type, rope in ropes.items():
        spelled = write_rope(rope)
        scaling = spelled.pop("rope_scaling") or {}
        scaling.pop("type", None)
        nested[layer_type] = {"rope_type": "default"} | spelled | scaling
    return {"rope_parameters": nested}


def write_rope(rope: Rope, *, fraction: str = "") -> Json:
    """Writes the old spelling, which both versions of transformers read.

    Args:
      rope: the encoding.
      fraction: the name of the rotated share of a head; empty if whole heads rotate.
    """
    fields: Json = {"rope_theta": rope.base, "rope_scaling": None}
    if fraction:
        fields[fraction] = rope.fraction
    if rope.scaling != "none":
        required, optional = SCALINGS.get(rope.scaling, ((), ()))
        # Loaders that have followed the first releases of a family read `type`.
        scaling: Json = {"rope_type": rope.scaling, "type": rope.scaling}
        for name in required + optional:
            value = getattr(rope, name)
            if value != 0 or name == "truncate":  # 0 is unset
                scaling[name] = list(value) if isinstance(value, tuple) else value
        if rope.scaling == "proportional":
            scaling["partial_rotary_factor"] = rope.fraction
        fields["rope_scaling"] = scaling
    return fields
