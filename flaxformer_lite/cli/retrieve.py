"""Searches documents for queries, for the commands that compare, measure or mine."""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from flaxformer_lite.cli.open_model import (
    Opened,
    folder_of,
    load_named_layers,
    open_named_model,
    print_warnings,
)
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.retrieval import is_beir, read_beir, read_pairs
from flaxformer_lite.files.read import Json
from flaxformer_lite.inference.embed import Vectors, embed, similarity
from flaxformer_lite.inference.retrieval import MAX_RANK, Hits, SearchData, metrics, search
from flaxformer_lite.model_details import load_sentence_layers
from flaxformer_lite.objectives.tables import retrieval
from flaxformer_lite.pretrained.sentences import SentenceLayers
from flaxformer_lite.runtime.progress import count_progress

if TYPE_CHECKING:
    from scipy.sparse import csr_array

NAMES = {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP"}
PRINTED = ("ndcg_10", "mrr_10", "map_100", "recall_1", "recall_5", "recall_10", "recall_100")


def evaluate(args: argparse.Namespace) -> None:
    """Prints how well a model's vectors find the right documents."""
    where = f"--data={args.data}"
    if args.length is not None or args.batch_size is not None:
        raise ConfigError(
            "--length, --batch_size: retrieval cuts texts where the model's"
            " sentence_bert_config.json says, and batches them by their length; leave both out."
        )
    if not is_beir(args.data):
        data = read_pairs(args.data, where, args.columns or "")
    elif args.columns:
        raise ConfigError("--columns: is for tables; the names in a folder of BEIR are fixed.")
    else:
        data = read_beir(args.data, where)
    with print_warnings():
        layers, opened = open_sentence_model(args)
        hits = nearest(opened, layers, data, MAX_RANK, prompts_of(args))
        baseline = _words(data)
    values = measured(data, hits)
    if args.json:
        result: Json = {"queries": len(data.queries), "documents": len(data.corpus), **values}
        if baseline:
            result["baseline"] = {"tf-idf": baseline["ndcg_10"]}
        print(json.dumps(result))
        return
    print(f"{args.data}: {len(data.queries):,} queries, {len(data.corpus):,} documents")
    rows = []
    for name in PRINTED:
        kind, _, k = name.partition("_")
        row = [f"{NAMES.get(kind, kind)}@{k}", f"{values[name]:.4f}", ""]
        if baseline:
            row[2] = f"{baseline[name]:.4f}"
        rows.append(row)
    title_of_baseline = ""
    if baseline:
        title_of_baseline = "tf-idf"
    print_table(["retrieval", "model", title_of_baseline], rows, right=[1, 2])


def searches_only(path: str) -> bool:
    """Returns whether a directory of published weights makes sparse or multi-vector vectors."""
    folder = folder_of(path)
    if not (folder / "modules.json").is_file():
        return False
    return load_sentence_layers(folder).kind != "dense"


def open_sentence_model(args: argparse.Namespace) -> tuple[SentenceLayers, Opened]:
    """Opens the model that a command names, and its layers after the encoder."""
    folder = folder_of(args.model)
    layers = load_named_layers(args, folder)
    similarity(layers)  # refuses a way to compare before the weights are read
    return layers, open_named_model(args, folder=folder)


def prompts_of(args: argparse.Namespace) -> dict[str, str | None]:
    """Returns the prompts that the command line sets, by task."""
    flags = vars(args)
    return {"query": flags.get("query_prompt"), "document": flags.get("document_prompt")}


def nearest(
    opened: Opened,
    layers: SentenceLayers,
    data: SearchData,
    k: int,
    prompts: dict[str, str | None],
) -> Hits:
    """Returns the k nearest documents of each query; see `nearest_and_scores`."""
    return nearest_and_scores(opened, layers, data, k, prompts, [[]] * len(data.queries))[0]


def nearest_and_scores(
    opened: Opened,
    layers: SentenceLayers,
    data: SearchData,
    k: int,
    prompts: dict[str, str | None],
    scored_rows: Sequence[Sequence[int]],
) -> tuple[Hits, list[dict[int, float]]]:
    """Returns the k nearest documents of each query, and its similarities to `scored_rows`.

    Documents are numbered in the order of their sorted ids. Of equally similar documents, the one
    with the lower number comes first.
    """
    similar: list[dict[int, float]] = [{} for _ in scored_rows]

    def scored(start: int, first: int, similar_QM: jax.Array) -> None:
        values_QM = np.asarray(similar_QM)
        for place, values_M in enumerate(values_QM):
            for row in scored_rows[start + place]:
                if first <= row < first + len(values_M):
                    similar[start + place][row] = float(values_M[row - first])

    documents = [data.corpus[name] for name in sorted(data.corpus)]
    queries = embed(
        opened, list(data.queries.values()), layers, task="query", prompt=prompts["query"]
    )
    with count_progress("documents", len(documents)) as advance:

        def vectors_of(start: int, end: int) -> Vectors:
            texts = documents[start:end]
            vectors = embed(opened, texts, layers, task="document", prompt=prompts["document"])
            advance(end - start)
            return vectors

        score = similarity(layers)
        hits = search(queries, len(documents), vectors_of, score, k, scored=scored)
    return hits, similar


def measured(data: SearchData, hits: Hits) -> dict[str, float]:
    """Computes the metrics of a search."""
    names = sorted(data.corpus)
    retrieved = []
    for rows in hits.rows_QK.tolist():
        retrieved.append([names[row] for row in rows if row >= 0])
    return metrics(retrieved, [data.relevant[query] for query in data.queries])


def _words(data: SearchData) -> dict[str, float] | None:
    """Returns the metrics of tf-idf; None without scikit-learn, or without words."""
    documents = [data.corpus[name] for name in sorted(data.corpus)]
    vectors = retrieval.same_words(list(data.queries.values()), documents)
    if vectors is None:
        return None
    queries_QW, documents_MW = vectors

    def score(a_QW: "csr_array", b_MW: "csr_array") -> np.ndarray:
        return (a_QW @ b_MW.T).toarray()

    def vectors_of(start: int, end: int) -> "csr_array":
        return documents_MW[start:end]

    return measured(data, search(queries_QW, len(documents), vectors_of, score, MAX_RANK))
