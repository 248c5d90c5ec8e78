"""Building a config from a family's table of presets."""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.config import ConfigError, ModelConfig, check_family
from flaxformer_lite.registry import nearest


def build(family: str, base: dict[str, Any], presets: Mapping[str, Any], preset: str, overrides: dict) -> ModelConfig:
    """Builds a config from the family's base, overridden by the preset's sizes, then by the caller's fields.

    Raises:
      ConfigError: there is no such preset, or a rule of ModelConfig is broken.
    """
    if preset not in presets:
        near = nearest(preset, list(presets))
        raise ConfigError(f"{family}: no preset {preset!r}{near}; choose from {', '.join(presets)}.")
    cfg = ModelConfig(**{"family": family, **base, **presets[preset], **overrides})
    check_family(cfg)
    return cfg
