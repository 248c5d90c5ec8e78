"""Hard negatives: documents that a model finds similar to a query and that are not its answer."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.retrieval import Hits


@dataclass(frozen=True, kw_only=True)
class MiningRules:
    """Rules that choose negatives among the documents nearest to a query.

    Attributes:
      negatives: of each query, at most.
      range_min: candidates to leave out, the nearest first.
      range_max: candidates to look at; None is as many as are needed, and ten times as many where a
        score or margin may exclude some.
      max_score, min_score: bounds of a negative's similarity.
      absolute_margin: a negative's similarity is at most that of the least similar answer minus it.
      relative_margin: likewise, minus this share of the size of that similarity.
      sampling: the `top` candidates, or a `random` choice of them.
    """

    negatives: int = 3
    range_min: int = 0
    range_max: int | None = None
    max_score: float | None = None
    min_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None
    sampling: str = "top"

    def last(self, positives: int) -> int:
        """Returns the number of candidates to look at, the answers not counted.

        Args:
          positives: the most answers that a query has.

        Raises:
          ConfigError: the range leaves too few.
        """
        excludes = (self.absolute_margin, self.relative_margin, self.max_score)
        more = self.negatives
        if any(rule is not None for rule in excludes):
            more *= 10
        last = self.range_max
        if last is None:
            last = self.range_min + more + positives
        if last - self.range_min < self.negatives:
            raise ConfigError(
                f"range_min={self.range_min}, range_max={last}: leave"
                f" {max(0, last - self.range_min)} candidates, fewer than the {self.negatives}"
                " negatives of a query; raise range_max, or lower the others."
            )
        return last


def mine(
    hits: Hits,
    positive: Sequence[Mapping[int, float]],
    excluded: Sequence[Collection[int]],
    rules: MiningRules,
    *,
    seed: int = 0,
) -> list[list[int]]:
    """Chooses the negatives of each query, as sentence-transformers' mine_hard_negatives does.

    Args:
      hits: the nearest documents of each query, at least `rules.last(...)` and its answers.
      positive: the similarity of each answer, by its number.
      excluded: the numbers of documents that are no negatives, the answers among them.
      rules: which to take.
      seed: of the random choice.

    Returns:
      The numbers of the negatives of each query, the nearest first; fewer where too few are left.
    """
    last = rules.last(max((len(scores) for scores in positive), default=0))
    draw = np.random.default_rng(seed)
    chosen = []
    for scores_K, rows_K, answers, out in zip(
        hits.scores_QK, hits.rows_QK, positive, excluded, strict=True
    ):
        kept_K = (rows_K >= 0) & ~np.isin(rows_K, list(out))
        least = min(answers.values())
        if rules.absolute_margin is not None:
            kept_K &= scores_K + rules.absolute_margin <= least
        if rules.relative_margin is not None:
            kept_K &= scores_K <= least - abs(least) * rules.relative_margin
        if rules.max_score is not None:
            kept_K &= scores_K <= rules.max_score
        if rules.min_score is not None:
            kept_K &= scores_K >= rules.min_score
        candidates = rows_K[kept_K][rules.range_min : last].tolist()
        if rules.sampling == "random" and len(candidates) > rules.negatives:
            places = draw.choice(len(candidates), rules.negatives, replace=False)
            candidates = [candidates[place] for place in sorted(places.tolist())]
        chosen.append(candidates[: rules.negatives])
    return chosen
