"""The base of both objectives: pairs are compared by one number, as their vectors are large."""

from dataclasses import dataclass

import numpy as np

from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.base import Baseline, Dataset
from flaxformer_lite.objectives.rows import Rows
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings
from flaxformer_lite.types import Predictions


@dataclass(frozen=True, kw_only=True)
class PairSimilarity(SentenceEmbeddings):
    """Base class of objectives whose vectors are too large to be kept by evaluation.

    `predictions` returns `similarity`, that of the first two texts of a row.
    """

    def scores(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> dict[str, float]:
        return {}

    def decode(self, predictions: Predictions, records: Rows) -> list[Json]:
        """Returns for each row the `similarity` of its first two texts."""
        return [{"similarity": float(value)} for value in predictions["similarity"]]

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        return None
