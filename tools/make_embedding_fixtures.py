"""Makes retrieval.json, kinds.json, sparse and late of tests/fixtures/sentences: what
sentence-transformers computes for retrieval, with sparse and with multi-vector models.

python tools/make_embedding_fixtures.py    # in an environment with torch and sentence-transformers
"""

import json
import random
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sparse_encoder import losses
from sentence_transformers.sparse_encoder.modules import SpladePooling
from sentence_transformers.util import mine_hard_negatives
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

OUT = Path("tests/fixtures/sentences")
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
TEXTS = ["zero one two", "four", "three two one zero four five six seven"]
MINING = (
    {},
    {"num_negatives": 2, "range_min": 1, "range_max": 45, "relative_margin": 0.1},
    {"num_negatives": 4, "range_max": 45, "absolute_margin": 0.05},
    {"num_negatives": 2, "range_max": 45, "max_score": 0.6, "min_score": 0.0},
)
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


def mined(model: SentenceTransformer, data: dict[str, dict]) -> dict[str, list]:
    """Returns the negatives that sentence-transformers mines, by the options."""
    rows: dict[str, list[str]] = {"anchor": [], "positive": []}
    for query, documents in data["relevant"].items():
        for document in documents:
            rows["anchor"].append(data["queries"][query])
            rows["positive"].append(data["corpus"][document])
    found = {}
    for options in MINING:
        made = mine_hard_negatives(
            Dataset.from_dict(rows),
            model,
            corpus=list(data["corpus"].values()),
            output_format="labeled-list",
            verbose=False,
            **options,
        )
        found[json.dumps(options)] = [[row["anchor"], *row["positive"]] for row in made]
    return found


def masked_lm(folder: Path) -> None:
    """Writes a tiny BERT with its masked-LM head, and the tokenizer of the dense fixtures."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(
        vocab_size=12, hidden_size=16, max_position_embeddings=8, initializer_range=0.5, **sizes
    )
    model = BertForMaskedLM(config)
    torch.nn.init.normal_(model.cls.predictions.bias)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(OUT / "mean_normalize").save_pretrained(folder)


def sparse(source: Path) -> dict[str, list]:
    """Makes the folder `sparse`; returns its vectors, with other poolings, and the loss."""
    made = {}
    for pooling, activation in (("sum", "log1p_relu"), ("max", "relu")):
        transformer = Transformer(str(source), transformer_task="fill-mask", max_seq_length=8)
        model = SparseEncoder(modules=[transformer, SpladePooling(pooling, activation)])
        made[f"{pooling} {activation}"] = model.encode(TEXTS).to_dense().tolist()
    model.save(str(OUT / "sparse"), create_model_card=False)
    made["similarity"] = model.similarity(*[model.encode(TEXTS)] * 2).tolist()
    vectors = torch.tensor(made["max relu"])
    ranking = losses.SparseMultipleNegativesRankingLoss(model)
    loss = losses.SpladeLoss(
        model, ranking, document_regularizer_weight=0.02, query_regularizer_weight=0.05
    )
    embeddings = [vectors[:2], vectors[1:], vectors[[2, 0]]]  # anchors, positives, negatives
    parts = [
        ranking.compute_loss_from_embeddings(embeddings, None),
        0.02 * loss.document_regularizer.compute_loss_from_embeddings(torch.cat(embeddings[1:])),
        0.05 * loss.query_regularizer.compute_loss_from_embeddings(embeddings[0]),
    ]
    made["loss"] = float(sum(parts))
    return made


def late() -> dict[str, list]:
    """Makes the folder `late`; returns its vectors of queries and documents, and MaxSim."""
    expansion = {"strategy": "fixed", "length": 6, "token": "[UNK]"}
    transformer = Transformer(
        str(OUT / "mean_normalize"), max_seq_length=8, query_expansion=expansion, document_length=7
    )
    identity = torch.nn.Identity()
    dense = Dense(
        16, 6, bias=False, activation_function=identity, module_input_name="token_embeddings"
    )
    mask = MultiVectorMask(skiplist_words=["three", "?"])
    unit = Normalize(module_input_name="token_embeddings")
    prompts = {"query": "seven ", "document": "six "}
    made = {}
    for attend in (True, False):
        transformer.query_expansion = {**expansion, "attend": attend}
        model = MultiVectorEncoder(modules=[transformer, dense, mask, unit], prompts=prompts)
        made[f"queries attend={attend}"] = arrays(model.encode_query(TEXTS))
    model.save(str(OUT / "late"), create_model_card=False)
    made["documents"] = arrays(model.encode_document(TEXTS))
    made["neither"] = arrays(model.encode(TEXTS))
    pair = model.encode_query(TEXTS), model.encode_document(TEXTS)
    made["maxsim"] = model.similarity(*pair).tolist()
    scores = torch.tensor(made["maxsim"])
    made["loss"] = float(torch.nn.functional.cross_entropy(scores / 0.5, torch.arange(3)))
    transformer.query_expansion = {**expansion, "strategy": "min", "length": 5}
    made["queries min"] = arrays(model.encode_query(TEXTS))
    return made


def arrays(vectors: list) -> list:
    return [one.tolist() for one in vectors]


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        masked_lm(Path(folder))
        kinds = {"texts": TEXTS, "sparse": sparse(Path(folder)), "late": late()}
    (OUT / "kinds.json").write_text(json.dumps(kinds) + "\n")
    data = collection()
    dense = SentenceTransformer(str(OUT / "mean_normalize"), device="cpu")
    expected = {"metrics": evaluated(dense, data), "mined": mined(dense, data)}
    (OUT / "retrieval.json").write_text(json.dumps({**data, **expected}, indent=1) + "\n")


if __name__ == "__main__":
    main()
