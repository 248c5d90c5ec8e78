"""Model families, one per file: published sizes, skeleton, and published weights and config."""

import dataclasses
from typing import TYPE_CHECKING, Any

from flaxformer_lite import first_model, registry
from flaxformer_lite.config import ConfigError, ModelConfig, check_family, check_names

if TYPE_CHECKING:  # a family's tables are read without JAX
    import flax.linen as nn

# Files that are not families.
SHARED = ("bart_decoders", "fields", "parameter_shapes", "presets", "rope_fields", "weight_map")
# Families that are rows of a table: the file whose function `family` returns them.
ROWS = {
    "bart_decoder": "bart_decoders",
    "blenderbot_decoder": "bart_decoders",
    "blenderbot_small_decoder": "bart_decoders",
    "camembert": "roberta",
    "data2vec_text": "roberta",
    "marian_decoder": "bart_decoders",
    "mbart_decoder": "bart_decoders",
    "pegasus_decoder": "bart_decoders",
    "plbart_decoder": "bart_decoders",
    "xlm_roberta": "roberta",
}


def build_model(
    family: str | ModelConfig, preset: str | None = None, /, **overrides: Any
) -> "nn.Module":
    """Builds the linen module for a config, or for a preset of a family.

        >>> model = build_model("gpt2", "tiny", vocab_size=100)

    Args:
      family: a file of flaxformer_lite/models, or a ModelConfig.
      preset: one of the family's PRESETS; a ModelConfig takes none.
      **overrides: fields of ModelConfig, also of one that is passed.

    Raises:
      ValueError: there is no such family.
      ConfigError: there is no such preset or field, or none may be named, or the sizes do not fit
        each other.
    """
    first_model.prepare_process()
    if isinstance(family, ModelConfig):
        if preset is not None:
            raise ConfigError(
                f"preset={preset!r}: is of a family by name, and a ModelConfig has its sizes"
                f" already; leave it out, or pass {family.family!r}."
            )
        check_names(overrides)
        cfg = dataclasses.replace(family, **overrides)
    elif not isinstance(family, str):
        raise ConfigError(
            f"family is a {type(family).__name__}: must be a name, such as 'gpt2', or a"
            " ModelConfig."
        )
    else:
        plugin = registry.resolve("models", family)
        cfg = plugin.config(preset, **overrides) if preset else plugin.config(**overrides)
    return check_family(cfg)(cfg)
