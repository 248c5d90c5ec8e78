"""Retrieval: the nearest documents of each query, and how many of them are right.

The metrics equal those of sentence-transformers' InformationRetrievalEvaluator.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.inference.embed import Similarity, Vectors
from flaxformer_lite.objectives.tables.retrieval import sum_discounted

DOCUMENT_CHUNK = 4096  # documents embedded and compared at a time
QUERY_BLOCK = 256  # queries compared with them at a time
CUTOFFS = (1, 3, 5, 10, 100)  # of accuracy, precision and recall
MAX_RANK = 100  # documents of a query that the metrics read


class SearchData(NamedTuple):
    """Queries, documents, and which of them belong together.

    Attributes:
      queries, corpus: texts by id.
      relevant: the ids of the right documents, by the id of a query.
    """

    queries: Mapping[str, str]
    corpus: Mapping[str, str]
    relevant: Mapping[str, Collection[str]]


class Hits(NamedTuple):
    """The nearest documents of each query, the nearest first.

    Attributes:
      scores_QK: their similarities, float32; -inf where there are fewer than K documents.
      rows_QK: their numbers, int32; -1 where there are fewer.
    """

    scores_QK: np.ndarray
    rows_QK: np.ndarray


def search(
    queries: Vectors,
    documents: int,
    vectors_of: Callable[[int, int], Vectors],
    score: Similarity,
    k: int,
    *,
    scored: Callable[[int, int, jax.Array], None] | None = None,
) -> Hits:
    """Finds the k documents that are most similar to each query.

    Of documents that are equally similar the first come first. No more than QUERY_BLOCK x
    DOCUMENT_CHUNK similarities exist at a time.

    Args:
      queries: the vectors of all queries.
      documents: the number of documents.
      vectors_of: (start, end) -> the vectors of these documents.
      score: (vectors of queries, vectors of documents) -> similarities [queries, documents].
      k: how many; more than there are documents is all of them.
      scored: called with the first query, the first document and their similarities [queries,
        documents] of each chunk.
    """
    k = min(k, documents)
    count = len(queries) if isinstance(queries, list) else queries.shape[0]
    scores_QK = np.full((count, k), -np.inf, np.float32)
    rows_QK = np.full((count, k), -1, np.int32)
    for first in range(0, documents, DOCUMENT_CHUNK):
        chunk = vectors_of(first, min(first + DOCUMENT_CHUNK, documents))
        for start in range(0, count, QUERY_BLOCK):
            block = slice(start, start + QUERY_BLOCK)
            similar_QM = jnp.asarray(score(queries[block], chunk), jnp.float32)
            if scored:
                scored(start, first, similar_QM)
            merged = _merge(scores_QK[block], rows_QK[block], similar_QM, first, k)
            scores_QK[block] = merged[0]
            rows_QK[block] = merged[1]
    return Hits(scores_QK, rows_QK)


@functools.partial(jax.jit, static_argnames="k")
def _merge(
    scores_QK: jax.Array, rows_QK: jax.Array, similar_QM: jax.Array, first: int, k: int
) -> tuple[jax.Array, jax.Array]:
    """Merges the best so far with a chunk of later documents; top_k keeps the order of equals."""
    new_QM = jnp.broadcast_to(
        first + jnp.arange(similar_QM.shape[1], dtype=jnp.int32)[None], similar_QM.shape
    )
    both = jnp.concatenate([scores_QK, similar_QM], axis=1)
    rows = jnp.concatenate([rows_QK, new_QM], axis=1)
    best, places = jax.lax.top_k(both, k)
    return best, jnp.take_along_axis(rows, places, axis=1)


def metrics(hits: Sequence[Sequence[str]], relevant: Sequence[Collection[str]]) -> dict[str, float]:
    """Computes the means over queries of accuracy, precision, recall, MRR, nDCG and MAP.

    Args:
      hits: the ids of the documents found for each query, the nearest first.
      relevant: the numbers of the right ones, at least one for each query.

    Returns:
      `ndcg_10`, `mrr_10`, `map_100`, and `recall_k`, `precision_k` and `accuracy_k` (at least one
      right among the first k) for k in CUTOFFS. A right document is as good as any other, also
      where the file grades them.
    """
    of_queries = [_metrics(*pair) for pair in zip(hits, relevant, strict=True)]
    means = {}
    for name in of_queries[0]:
        means[name] = math.fsum(values[name] for values in of_queries) / len(of_queries)
    return means


def _metrics(hits: Sequence[str], relevant: Collection[str]) -> dict[str, float]:
    right = [document in relevant for document in hits[:MAX_RANK]]
    ranks = [rank for rank, is_right in enumerate(right, start=1) if is_right]
    first_ranks = [rank for rank in ranks if rank <= 10]
    ideal = range(1, min(10, len(relevant)) + 1)
    precisions = [number / rank for number, rank in enumerate(ranks, start=1)]
    values = {
        "ndcg_10": sum_discounted(first_ranks) / sum_discounted(ideal),
        "mrr_10": 1 / first_ranks[0] if first_ranks else 0.0,
        "map_100": math.fsum(precisions) / min(MAX_RANK, len(relevant)),
    }
    for k in CUTOFFS:
        values[f"recall_{k}"] = sum(right[:k]) / len(relevant)
    for k in CUTOFFS:
        values[f"precision_{k}"] = sum(right[:k]) / k
    for k in CUTOFFS:
        values[f"accuracy_{k}"] = float(any(right[:k]))
    return values
