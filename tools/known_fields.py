"""Writes flaxformer_lite/pretrained/known_fields.py: the fields that transformers computes with, by
model_type.

    PYTHONPATH=. /tmp/reference/bin/python tools/known_fields.py >
    flaxformer_lite/pretrained/known_fields.py

Runs where make_fixtures.py does. A field is known where the family's config class declares it, or
an alias of it, or where code that the family's models share or have of their own reads it from the
config. Every other field of a file cannot change what transformers computes, and neither can those
of harmless_fields.py, which are left out.
"""

import collections
import dataclasses
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import transformers
from transformers import (
    AutoConfig,
    PreTrainedConfig,
    masking_utils,
    modeling_layers,
    modeling_rope_utils,
)

from flaxformer_lite.pretrained.harmless_fields import HARMLESS

MODELS = Path(__file__).parents[1] / "flaxformer_lite" / "models"
# as the family files spell them, which need jax to be imported
NAMES = sorted(
    {
        name
        for path in MODELS.glob("*.py")
        for name in re.findall(r'^    model_type="([\w-]+)",$', path.read_text(), re.MULTILINE)
    }
)
SHARED = (
    PreTrainedConfig.__post_init__,
    masking_utils,
    modeling_rope_utils,
    modeling_layers.GenericForSequenceClassification,
    modeling_layers.GenericForTokenClassification,
    modeling_layers.GenericForQuestionAnswering,
)
READS = (
    r"\bconfig\.(?!json\b)([a-z]\w*)\b(?!\()",
    r"getattr\(\s*(?:\w+\.)?(?:\w+_)?config,\s*\"(\w+)\"",
    r"kwargs\.(?:get|pop)\(\s*\"(\w+)\"",
)


def main() -> None:
    """Prints the table."""
    shared = declared(PreTrainedConfig) | {name for part in SHARED for name in read_in(part)}
    print(
        f'"""The fields of config.json that transformers {transformers.__version__} computes with;'
        ' written by\ntools/known_fields.py."""\n\n# By model_type; "" are those of every'
        ' family.\n_KNOWN = """'
    )
    families = collections.defaultdict[frozenset[str], list[str]](list)
    families[frozenset(shared - HARMLESS)] = [""]
    for model_type in NAMES:
        families[frozenset(known(model_type) - shared - HARMLESS)].append(model_type)
    for fields, model_types in families.items():
        print(
            textwrap.fill(
                f"{' '.join(model_types)}: {' '.join(sorted(fields))}",
                100,
                subsequent_indent="    ",
            )
        )
    print(
        '"""\n_ROWS = (row.partition(":") for row in _KNOWN.strip().replace("\\n    ", "'
        ' ").splitlines())'
    )
    print(
        "KNOWN = {model_type: frozenset(names.split()) for known, _, names in _ROWS for model_type"
        ' in known.split(" ")}'
    )


def known(model_type: str) -> set[str]:
    """Returns the names that one family declares or reads."""
    config = AutoConfig.for_model(model_type)
    folder = Path(inspect.getfile(type(config))).parent
    models = importlib.import_module(
        f"{type(config).__module__.rpartition('.')[0]}.modeling_{folder.name}"
    )
    return declared(type(config)) | read_in(models) | read_in(type(config))


def declared(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)} | set(cls.attribute_map)


def read_in(part: Any) -> set[str]:
    text = inspect.getsource(part)
    return {name for pattern in READS for name in re.findall(pattern, text)}


if __name__ == "__main__":
    main()
