"""A small text of several documents, and an experiment on it."""

import json
import random

import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import DataConfig, ExperimentConfig, ModelConfig, TokenizerConfig

FAMILIES = {"decoder": "gpt2", "encoder": "bert", "encoder_decoder": "t5", "embedding": "word2vec"}
SENTENCE = (
    "the quick brown fox jumps over a lazy dog while seven wizards boil their potions, quietly;"
    " 3.14 isn't pi"
)


@pytest.fixture
def documents():
    """120 documents of 1 to 200 words."""
    draw = random.Random(0)
    return [
        f"document {n}: " + " ".join(draw.choices(SENTENCE.split(), k=draw.randint(1, 200)))
        for n in range(120)
    ]


@pytest.fixture
def jsonl(tmp_path, documents):
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


@pytest.fixture
def experiment(tmp_path, jsonl):
    """experiment(objective="causal_lm", vocab_size=.., path=.., ..) -> ExperimentConfig on the
    small text, bytes."""

    def make(
        objective="causal_lm",
        *,
        vocab_size=0,
        tokenizer="bytes",
        tokenizer_path="",
        tokens=400,
        **data,
    ):
        options = data.pop("options", {})
        data = {
            "path": str(jsonl),
            "length": 32,
            "eval_fraction": 0.1,
            "cache": str(tmp_path / "cache"),
            **data,
        }
        chosen = registry.resolve_class("objectives", objective)(**options)
        (skeleton,) = chosen.skeletons
        layers = {f"{stack}_layers": 1 for stack in ("encoder", "decoder") if stack in skeleton}
        sizes = {"vocab_size": vocab_size, "d_model": 8, "num_heads": 2, "mlp_dim": 16, **layers}
        family = "electra" if objective == "replaced_tokens" else FAMILIES[skeleton]
        return ExperimentConfig(
            model=ModelConfig(family=family, head=chosen.head, **sizes),
            objective=chosen,
            data=DataConfig(
                tokenizer=TokenizerConfig(name=tokenizer, path=tokenizer_path, vocab_size=tokens),
                **data,
            ),
        )

    return make
