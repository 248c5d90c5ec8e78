"""Builds a config from a family's table of presets."""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.config import ConfigError, ModelConfig, check_family, check_names
from flaxformer_lite.registry import did_you_mean


def build_config(
    family: str,
    base: Mapping[str, object],
    presets: Mapping[str, Any],
    default: str,
    /,
    preset: str = "",
    **overrides: object,
) -> ModelConfig:
    """Builds a config: the family's base, overridden by the preset, then by the caller's fields.

    A family binds the first four arguments: `config = partial(build, "gpt2", BASE, PRESETS,
    "small")`.

    Args:
      family: the name of the family.
      base: the fields that its presets have in common.
      presets: the fields of each preset.
      default: the preset to use for `preset=""`.
      preset: the name of a preset.
      **overrides: fields of ModelConfig.

    Raises:
      ConfigError: there is no such preset or field, or a rule of ModelConfig is broken.
    """
    preset = preset or default
    if preset not in presets:
        near = did_you_mean(preset, list(presets))
        raise ConfigError(
            f"{family}: no preset {preset!r}{near}; choose from {', '.join(presets)}."
        )
    check_names(overrides)
    cfg = ModelConfig(**{"family": family, **base, **presets[preset], **overrides})
    check_family(cfg)
    return cfg
