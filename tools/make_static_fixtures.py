"""Makes tests/fixtures/static: tiny static embeddings, with the vectors that sentence-transformers
and Model2Vec compute of them.

python tools/make_static_fixtures.py  # where torch, sentence-transformers and model2vec are
"""

import json
from pathlib import Path

import numpy as np
from model2vec import StaticModel
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer, models, pre_tokenizers, processors

OUT = Path(__file__).parents[1] / "tests/fixtures/static"
WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "zero", "one", "two", "three"]
TEXTS = [
    "zero one two",
    "three what zero",  # with an unknown word
    "what",
    "",
    "one two three zero one two three",  # longer than the limit of Model2Vec's folder
]
WIDTH = 6
LIMIT = 5  # tokens, and of WORDS, 4 characters each


def tokenizer() -> Tokenizer:
    ids = {word: i for i, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return words


def main() -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((len(WORDS), WIDTH)).astype(np.float32)
    embedding = modules.StaticEmbedding(tokenizer(), embedding_weights=table)
    model = SentenceTransformer(modules=[embedding], device="cpu")
    folder = OUT / "sentence_transformers"
    model.save(str(folder), create_model_card=False)
    # As versions before 5 wrote it, which is what is circulated.
    inner = folder / "0_StaticEmbedding"
    inner.mkdir(exist_ok=True)
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).replace(inner / name)
    layers = [
        {"idx": 0, "name": "0", "path": inner.name},
        {"idx": 1, "name": "1", "path": "1_Normalize"},
    ]
    layers[0]["type"] = "sentence_transformers.models.StaticEmbedding"
    layers[1]["type"] = "sentence_transformers.models.Normalize"
    (folder / "modules.json").write_text(json.dumps(layers, indent=2) + "\n")
    found = {"sentence_transformers": SentenceTransformer(str(folder)).encode(TEXTS)}
    for name, normalize in (("model2vec", True), ("model2vec_shared", False)):
        shared = {}
        if name == "model2vec_shared":
            shared["token_mapping"] = rng.integers(0, len(WORDS), len(WORDS))
            shared["weights"] = rng.random(len(WORDS)).astype(np.float32)
        config = {"model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": 256}
        made = StaticModel(
            table, tokenizer(), config, normalize=normalize, max_length=LIMIT, **shared
        )
        made.save_pretrained(OUT / name)
        (OUT / name / "README.md").unlink(missing_ok=True)
        found[name] = StaticModel.from_pretrained(OUT / name).encode(TEXTS)
    vectors = {name: np.round(rows.astype(float), 7).tolist() for name, rows in found.items()}
    (OUT / "expected.json").write_text(json.dumps({"texts": TEXTS, "vectors": vectors}) + "\n")


if __name__ == "__main__":
    main()
