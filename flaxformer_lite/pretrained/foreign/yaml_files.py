"""Reads the yaml in which a program keeps the settings of a run."""

from pathlib import Path

import yaml

from flaxformer_lite.files.read import Json, brief, read_text, shown
from flaxformer_lite.pretrained.safetensors import WeightsError


class Loader(yaml.SafeLoader):
    """A loader without aliases, by which a few lines can stand for more than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases, which are not read")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Json:
    """Reads a mapping; {} if the file holds something else.

    Raises:
      WeightsError: the file is not yaml.
    """
    try:
        values = yaml.load(read_text(path, error=WeightsError), Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(f"{path}: not a yaml file ({shown(str(error))}).") from None
    return values if isinstance(values, dict) else {}


def read_number(path: Path | None, values: Json, name: str, default: float | None = None) -> float:
    """Returns a number; yaml reads 1e-5, without a dot, as a text.

    Raises:
      WeightsError: the field is not a number, or is missing and has no default.
    """
    value = values.get(name.rpartition(".")[2], default)
    try:
        if isinstance(value, bool) or value is None:
            raise ValueError
        return float(value)
    except (TypeError, ValueError):
        raise WeightsError(f"{path}: {name}={brief(value)}: must be a number.") from None
