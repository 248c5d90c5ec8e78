"""Rotary positions as published configs spell them, the old way and the new."""

from typing import Any

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models._published import Fields
from flaxformer_lite.positions.rope import Rope

# rope_type: (our scaling, the fields of Rope that it reads)
SCALINGS = {
    "default": ("none", ()),
    "linear": ("linear", ("factor",)),
    "llama3": ("llama3", ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")),
    "yarn": ("yarn", ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
                      "attention_factor", "mscale", "mscale_all_dim")),
}  # fmt: skip
INTEGERS = ("original_max_position_embeddings",)


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
    spelled = dict(fields.get("rope_parameters") or fields.get("rope_scaling", {}))
    where = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    fields.read |= {"rope_parameters", "rope_scaling"}
    part = fields.get(fraction or "partial_rotary_factor", default_fraction)
    options = {
        "base": float(spelled.pop("rope_theta", fields.get(base, 10000.0))),
        "fraction": float(spelled.pop("partial_rotary_factor", part)),
    }
    if not fraction and options["fraction"] != 1:
        raise ConfigError(f"config.json: partial_rotary_factor={options['fraction']}: in this family whole heads turn.")
    kinds = {spelled.pop(name) for name in ("rope_type", "type") if name in spelled} or {"default"}
    kind = kinds.pop()
    if kinds or kind not in SCALINGS:
        raise ConfigError(f"config.json: {where} of type {kind!r} is not known here; there are {', '.join(SCALINGS)}.")
    scaling, known = SCALINGS[kind]
    if unknown := sorted(set(spelled) - set(known)):
        raise ConfigError(f"config.json: {where}.{unknown[0]}={spelled[unknown[0]]!r} is not known for type {kind!r} and"
                          f" might change the numbers.")  # fmt: skip
    if kind == "yarn":
        spelled.setdefault("original_max_position_embeddings", fields.get("max_position_embeddings", 0))
    for name, value in spelled.items():
        if value is not None:
            options[name] = value if isinstance(value, bool) else int(value) if name in INTEGERS else float(value)
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
