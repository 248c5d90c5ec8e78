"""Minus the length of an answer, as a share of the most tokens that it may have: -1 to 0."""

from collections.abc import Sequence

from flaxformer_lite.files.read import Json


def score(records: Sequence[Json]) -> list[float]:
    return [-record["tokens"] / record["most_tokens"] for record in records]
