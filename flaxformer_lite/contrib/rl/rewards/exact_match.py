"""1 for an answer that equals the row's `answer`, without the spaces around both; else 0."""

from collections.abc import Sequence

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json


def score(records: Sequence[Json]) -> list[float]:
    """Compares each `written` text with `answer`.

    Raises:
      ConfigError: a row has no `answer`.
    """
    scores = []
    for record in records:
        if record.get("answer") is None:
            raise ConfigError("the row has no answer; name its column: data.columns=answer=NAME.")
        scores.append(float(record["written"].strip() == str(record["answer"]).strip()))
    return scores
