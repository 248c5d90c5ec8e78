"""Families: each file holds a family's published sizes and the skeleton they go into."""

from typing import Any

from flaxformer_lite import registry
from flaxformer_lite.config import ModelConfig

# Files that are no families.
SHARED = ("presets", "rope_fields", "weight_map")


def build_model(family: str | ModelConfig, preset: str | None = None, /, **overrides: Any):
    """The linen module of a config, or of a family's preset.

        >>> model = build_model("gpt2", "tiny", vocab_size=100)

    Args:
      family: a file of flaxformer_lite/models, or a ModelConfig.
      preset: one of the family's PRESETS.
      **overrides: fields of ModelConfig.

    Raises:
      ValueError: no such family.
      ConfigError: no such preset, or sizes that do not fit each other.
    """
    if isinstance(family, ModelConfig):
        return registry.resolve("models", family.family).Model(family)
    plugin = registry.resolve("models", family)
    return plugin.Model(plugin.config(preset, **overrides) if preset else plugin.config(**overrides))
