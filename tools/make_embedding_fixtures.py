"""Makes tests/fixtures/sentences/{retrieval,sparse,late}: what sentence-transformers computes for
retrieval, with sparse and with multi-vector models.

python tools/make_embedding_fixtures.py    # in an environment with torch and sentence-transformers
"""

import json
import random
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

OUT = Path("tests/fixtures/sentences")
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
CUTOFFS = [1, 3, 5, 10, 100]


def collection() -> dict[str, dict]:
    """Returns queries, documents, two of which are equal, and judgements, as BEIR's files."""
    draw = random.Random(0)
    queries = {f"q{i}": " ".join(draw.choices(WORDS, k=2)) for i in range(12)}
    corpus = {f"d{i}": " ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for i in range(40)}
    corpus["d7"] = corpus["d30"]
    relevant = {}
    for i in range(11):  # of the last query nothing is known
        relevant[f"q{i}"] = sorted(draw.sample(sorted(corpus), k=1 + i % 4))
    return {"queries": queries, "corpus": corpus, "relevant": relevant}


def evaluated(model: SentenceTransformer, data: dict[str, dict]) -> dict[str, float]:
    evaluator = InformationRetrievalEvaluator(
        data["queries"],
        data["corpus"],
        {query: set(documents) for query, documents in data["relevant"].items()},
        accuracy_at_k=CUTOFFS,
        precision_recall_at_k=CUTOFFS,
        corpus_chunk_size=7,
        write_csv=False,
    )
    values = {}
    for name, value in evaluator(model).items():
        kind, _, k = name.partition("_")[2].partition("@")
        values[f"{kind}_{k}"] = float(value)
    return values


def main() -> None:
    data = collection()
    dense = SentenceTransformer(str(OUT / "mean_normalize"), device="cpu")
    expected = {"metrics": evaluated(dense, data)}
    (OUT / "retrieval.json").write_text(json.dumps({**data, **expected}, indent=1) + "\n")


if __name__ == "__main__":
    main()
