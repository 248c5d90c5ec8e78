"""Output of `evaluate`; tests/objectives checks its numbers."""

import pytest

from flaxformer_lite.cli import evaluate
from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.objectives.tables.sentence_embeddings import PairSimilarity


class Mine(Objective):
    pass


@pytest.mark.parametrize("kind", [PairSimilarity, Mine])
def test_the_table_names_the_file_of_an_objective(kind):
    name = evaluate.name_of_objective(kind)
    assert name == (f"{__name__}:Mine" if kind is Mine else "sentence_embeddings")
