"""Families that are rows of a table: what they hold is what a file of a family holds."""

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from flaxformer_lite.models.presets import build_config


def family_row(
    name: str,
    base: Mapping[str, object],
    presets: Mapping[str, Any],
    default: str,
    model: type,
    published: object,
) -> SimpleNamespace:
    """Returns a family that is a row of a table, with the names that a file of a family has.

    Args:
      name, base, presets, default: as for `build`.
      model: the class of its models.
      published: its published form (models/weight_map.py).
    """
    return SimpleNamespace(
        __name__=name,
        BASE=base,
        PRESETS=presets,
        config=partial(build_config, name, base, presets, default),
        Model=model,
        PUBLISHED=published,
    )
