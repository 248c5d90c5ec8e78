"""1 for an answer that is JSON of a given schema, 0.5 for other JSON, else 0.

The schema's keywords are those of KEYWORDS, as JSON Schema 2020-12 defines them; others are
refused, as an answer would be held to less than the schema says.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json

OTHER_JSON = 0.5  # the reward of JSON that is not of the schema
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def score(records: Sequence[Json]) -> list[float]:
    """Parses each `written` text, and compares it with `schema`.

    The schema, an object or its text, is of the answer's row or of `objective.reward_options`.

    Raises:
      ConfigError: there is no schema, or it has a keyword that is not read.
    """
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
        _check_keywords(schema)
        parsed = _parse_json(record["written"])
        if not parsed:
            scores.append(0.0)
        elif fits_schema(parsed[0], schema):
            scores.append(1.0)
        else:
            scores.append(OTHER_JSON)
    return scores


def fits_schema(value: object, schema: Json) -> bool:
    """Returns whether a value of JSON has the form that a schema describes."""
    return all(KEYWORDS[name](value, rule, schema) for name, rule in schema.items())


def _check_keywords(schema: Json) -> None:
    for name in schema:
        if name not in KEYWORDS:
            raise ConfigError(
                f"the JSON schema has the keyword {name[:40]!r}, which is not read; use those of"
                f" {', '.join(KEYWORDS)}, or a reward of your own."
            )
    for inner in schema.get("properties", {}).values():
        _check_keywords(inner)
    if "items" in schema:
        _check_keywords(schema["items"])


def _parse_json(text: str) -> list[object]:
    """Returns the value of a text in a list, which is empty if the text is no JSON."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []


def _has_type(value: object, rule: str | Sequence[str], schema: Json) -> bool:
    names = [rule] if isinstance(rule, str) else rule
    for name in names:
        # Python counts True as a number
        if isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool)):
            return True
    return False


def _has_properties(value: object, rule: Mapping[str, Json], schema: Json) -> bool:
    if not isinstance(value, dict):
        return True
    return all(fits_schema(value[name], inner) for name, inner in rule.items() if name in value)


def _has_no_others(value: object, rule: bool, schema: Json) -> bool:
    return rule or not isinstance(value, dict) or set(value) <= set(schema.get("properties", {}))


def _has_items(value: object, rule: Json, schema: Json) -> bool:
    return not isinstance(value, list) or all(fits_schema(item, rule) for item in value)


KEYWORDS: dict[str, Callable[..., bool]] = {
    "type": _has_type,
    "enum": lambda value, rule, _: value in rule,
    "properties": _has_properties,
    "required": lambda value, rule, _: not isinstance(value, dict) or set(rule) <= set(value),
    "additionalProperties": _has_no_others,
    "items": _has_items,
}
