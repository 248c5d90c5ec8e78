"""How a family's table of presets becomes a config."""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.models import check_family
from flaxformer_lite.registry import nearest


def build(family: str, base: dict[str, Any], presets: Mapping[str, Any], preset: str, overrides: dict) -> ModelConfig:
    """The family's base, the preset's sizes over it, the caller's overrides over both.

    Raises:
      ConfigError: no such preset, or a rule of ModelConfig broken.
    """
    if preset not in presets:
        near = nearest(preset, list(presets))
        raise ConfigError(f"{family}: no preset {preset!r}{near}; there are {', '.join(presets)}.")
    cfg = ModelConfig(**{"family": family, **base, **presets[preset], **overrides})
    check_family(cfg)
    return cfg
