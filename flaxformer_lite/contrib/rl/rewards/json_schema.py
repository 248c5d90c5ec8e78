"""1 for an answer that is JSON of a given schema (JSON Schema 2020-12), 0.5 for other JSON, else 0.

The package `jsonschema` compares them; a schema that names another by its address is refused, as
nothing is fetched.
"""

import importlib
import json
from collections.abc import Sequence

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json

OTHER_JSON = 0.5  # the reward of JSON that is not of the schema


def score(records: Sequence[Json]) -> list[float]:
    """Parses each `written` text, and compares it with `schema`.

    The schema, an object or its text, is of the answer's row or of `objective.reward_options`.

    Raises:
      ConfigError: there is no schema, it is none of JSON Schema, or `jsonschema` is not installed.
    """
    try:
        jsonschema = importlib.import_module("jsonschema")
        referencing = importlib.import_module("referencing")
    except ImportError:
        raise ConfigError(
            "jsonschema is not installed: pip install 'flaxformer_lite[evaluate]'."
        ) from None
    scores = []
    for record in records:
        schema = record.get("schema")
        if isinstance(schema, str):
            (schema,) = _parse_json(schema) or (None,)
        if not isinstance(schema, dict):
            raise ConfigError(
                "there is no JSON schema; give the table a column schema, or set"
                ' objective.reward_options={"schema": {...}}.'
            )
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ConfigError(f"the JSON schema is none: {error.message}.") from None
        # An empty registry, as the library would fetch what a schema refers to.
        validator = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
        parsed = _parse_json(record["written"])
        if not parsed:
            scores.append(0.0)
        elif validator.is_valid(parsed[0]):
            scores.append(1.0)
        else:
            scores.append(OTHER_JSON)
    return scores


def _parse_json(text: str) -> list[object]:
    """Returns the value of a text in a list, which is empty if the text is no JSON."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []
