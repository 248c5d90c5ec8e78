"""Rotary positions as published configs spell them, the old way and the new."""

from typing import Any

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.weight_map import Fields
from flaxformer_lite.positions.rope import Rope

# rope_type: (our scaling, the fields of Rope that it reads)
SCALINGS = {
    "default": ("none", ()),
    "linear": ("linear", ("factor",)),
    "llama3": ("llama3", ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")),
    "yarn": ("yarn", ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
                      "attention_factor", "mscale", "mscale_all_dim")),
}  # fmt: skip
KINDS_OF = {"original_max_position_embeddings": int, "truncate": bool}


def read_rope(fields: Fields, *, base: str = "rope_theta", fraction: str = "", default_fraction: float = 1.0) -> Rope:
    """The encoding that `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (4) describe.

    Args:
      fields: of config.json.
      base: the old name of rope_theta.
      fraction: the old name of the part of a head that turns; empty where all of it does.
      default_fraction: where neither name is present.

    Raises:
      ConfigError: a scaling that we lack, a parameter of one that we do not know, or a value that cannot be.
    """
    where = "rope_parameters" if fields.get("rope_parameters", {}) else "rope_scaling"
    inner = Fields(fields.get(where, {}), f"{where}.")
    fields.read |= {"rope_parameters", "rope_scaling"}
    options = {
        "base": inner.get("rope_theta", fields.get(base, 10000.0)),
        "fraction": inner.get(
            "partial_rotary_factor", fields.get(fraction or "partial_rotary_factor", default_fraction)
        ),
    }
    if options["base"] <= 0:
        raise ConfigError(f"config.json: rope_theta={options['base']}: must be positive.")
    if not fraction and options["fraction"] != 1:
        raise ConfigError(f"config.json: partial_rotary_factor={options['fraction']}: in this family whole heads turn.")
    kind = inner.get("rope_type", inner.get("type", "default"))
    if kind not in SCALINGS or inner.get("type", kind) != kind:
        raise ConfigError(f"config.json: {where} of type {kind!r} is not known here; there are {', '.join(SCALINGS)}.")
    scaling, known = SCALINGS[kind]
    for name in known:
        if (value := inner.get(name, kind=KINDS_OF.get(name, float))) is not None:
            options[name] = value
    if unknown := sorted(set(inner.values) - inner.read):
        raise ConfigError(f"{inner.where}{unknown[0]}={inner.values[unknown[0]]!r} is not known for type {kind!r} and"
                          f" might change the numbers.")  # fmt: skip
    if kind == "yarn":
        options.setdefault("original_max_position_embeddings", fields.get("max_position_embeddings", 0))
    try:
        return Rope(scaling=scaling, **options)
    except ValueError as error:
        raise ConfigError(f"config.json: {where}: {error}") from None


def write_rope(rope: Rope) -> dict[str, Any]:
    """The old spelling, which both versions read."""
    found = {"rope_theta": rope.base}
    if rope.scaling != "none":
        kind = next((kind for kind, (ours, _) in SCALINGS.items() if ours == rope.scaling), rope.scaling)
        options = {name: getattr(rope, name) for name in SCALINGS.get(kind, ("", ()))[1]}
        zero_is_unset = {name: value for name, value in options.items() if value != 0 or name == "truncate"}
        found["rope_scaling"] = {"rope_type": kind, **zero_is_unset}
    return found
