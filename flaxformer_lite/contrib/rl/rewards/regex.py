"""1 for an answer in which a regular expression is found (re.search), else 0."""

import re
from collections.abc import Sequence

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json


def score(records: Sequence[Json]) -> list[float]:
    """Searches each `written` text for `pattern`, of its row or of `objective.reward_options`.

    Raises:
      ConfigError: there is no pattern.
      re.error: it is none.
    """
    scores = []
    for record in records:
        pattern = record.get("pattern")
        if not isinstance(pattern, str):
            raise ConfigError(
                "there is no pattern; give the table a column pattern, or set"
                ' objective.reward_options={"pattern": "..."}.'
            )
        scores.append(float(re.search(pattern, record["written"]) is not None))
    return scores
