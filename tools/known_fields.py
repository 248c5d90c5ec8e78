"""Writes flaxformer_lite/pretrained/known_fields.py: the fields that transformers uses.

    PYTHONPATH=. PYTHON tools/known_fields.py > flaxformer_lite/pretrained/known_fields.py

PYTHON is one that has transformers, as for make_fixtures.py. A field is known if the config class
of the family declares it or an alias of it, or if the code of the family's models, or code that all
models share, reads it from the config. No other field can change what transformers computes.
Neither can those of harmless_fields.py, which are left out.
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
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from flaxformer_lite.pretrained.harmless_fields import HARMLESS

DROPOUT = (
    *("hidden_dropout_prob", "hidden_dropout", "resid_pdrop", "resid_dropout", "residual_dropout"),
    *("dropout", "dropout_rate", "embd_pdrop", "embed_dropout", "embedding_dropout"),
    *("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"),
    *("activation_dropout", "mlp_dropout"),
)
MODELS = Path(__file__).parents[1] / "flaxformer_lite" / "models"
# As the family files spell them, which need jax to be imported: of a file, and of its aliases.
OF_FILE = re.compile(r'(?:^    model_type=|\.published\(\n    )"([\w-]+)"', re.MULTILINE)
OF_ALIAS = re.compile(r': alias\("(\w+)"')


def list_model_types() -> list[str]:
    """Lists the model_types that family files read and transformers has."""
    found = set()
    for path in MODELS.glob("*.py"):
        text = path.read_text()
        found |= {*OF_FILE.findall(text)}
        found |= {name.replace("_", "-") for name in OF_ALIAS.findall(text)}
    return sorted(found & CONFIG_MAPPING_NAMES.keys())


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


PAGE = '''"""The fields of config.json that transformers {version} uses, by model_type.

tools/known_fields.py writes this file.
"""

# The names of families, and the fields that they use; "" are those that all families use.
_KNOWN = """
{rows}
"""


# The rates of dropout that their classes have where config.json says none.
_RATES = """
{rates}
"""


def _parse(table: str) -> dict[str, frozenset[str]]:
    fields = {{}}
    for row in table.strip().replace("\\n    ", " ").splitlines():
        model_types, _, names = row.partition(":")
        for model_type in model_types.split(" "):
            fields[model_type] = frozenset(names.split())
    return fields


KNOWN = _parse(_KNOWN)
RATES = {{}}
for _model_type, _rates in _parse(_RATES).items():
    RATES[_model_type] = {{name: float(x) for name, _, x in (r.partition("=") for r in _rates)}}
'''


def main() -> None:
    """Prints the table."""
    shared = declared(PreTrainedConfig)
    for part in SHARED:
        shared |= read_in(part)
    families = collections.defaultdict[frozenset[str], list[str]](list)
    families[frozenset(shared - HARMLESS)] = [""]
    for model_type in list_model_types():
        families[frozenset(known(model_type) - shared - HARMLESS)].append(model_type)
    rates = collections.defaultdict[frozenset[str], list[str]](list)
    for model_type in list_model_types():
        rates[frozenset(rates_of(model_type))].append(model_type)
    rates.pop(frozenset(), None)
    page = PAGE.format(
        version=transformers.__version__, rows=lines_of(families), rates=lines_of(rates)
    )
    print(page, end="")


def lines_of(families: dict[frozenset[str], list[str]]) -> str:
    rows = []
    for fields, model_types in families.items():
        row = f"{' '.join(model_types)}: {' '.join(sorted(fields))}"
        rows.append(textwrap.fill(row, 100, subsequent_indent="    ", break_on_hyphens=False))
    return "\n".join(rows)


def rates_of(model_type: str) -> list[str]:
    """Returns `field=rate` for the rates of dropout that a class has in its layers."""
    values = AutoConfig.for_model(model_type).to_dict()
    return [f"{name}={values[name]}" for name in DROPOUT if values.get(name) is not None]


def known(model_type: str) -> set[str]:
    """Returns the names that one family declares or reads."""
    config = AutoConfig.for_model(model_type)
    models = importlib.import_module(
        type(config).__module__.replace(".configuration_", ".modeling_")
    )
    return declared(type(config)) | read_in(models) | read_in(type(config))


def declared(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)} | set(cls.attribute_map)


def read_in(part: Any) -> set[str]:
    text = inspect.getsource(part)
    return {name for pattern in READS for name in re.findall(pattern, text)}


if __name__ == "__main__":
    main()
