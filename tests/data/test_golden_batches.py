"""The batches of each objective, bit for bit: what any change of the data path must leave alone.

They were written by the code of 0.3, and are the same in memory and from files, and for any number
of processes. A change of an objective changes its own, with the reason in the commit.
"""

import hashlib
import itertools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    TokenizerConfig,
    required_head,
)
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.data import rows as rows_of_tables
from flaxformer_lite.data.dataset import open_dataset
from tests.data.conftest import FAMILIES

SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards boil their potions"
WORDS = SENTENCE.split()
TEXTS = [
    " ".join(WORDS[(n * step + step) % len(WORDS)] for step in range(1 + n % 9, 20 + 3 * (n % 11)))
    for n in range(90)
]
CHATS = [
    [{"role": "user", "content": text[:20]}, {"role": "assistant", "content": text[20:60]}]
    for text in TEXTS
]


def document(n, text):
    return {"text": text}


def pair(n, text):
    return {"source": text[:40], "target": text[5:30]}


CASES = {
    "causal_lm": ({}, document),
    "prefix_lm": ({}, document),
    "masked_lm": ({"pairs": "next_sentence"}, document),
    "masked_lm order": ({"pairs": "sentence_order"}, document),
    "masked_lm joined": ({"pairs": "none"}, document),
    "replaced_tokens": ({}, document),
    "span_corruption": ({}, document),
    "ul2": ({}, document),
    "distillation": ({"teacher": "teacher"}, document),
    "cbow": ({}, document),
    "skip_gram": ({}, document),
    "seq2seq": ({}, pair),
    "text_to_text": ({}, pair),
    "classification": ({}, lambda n, text: {"text": text, "label": "abc"[n % 3]}),
    "classification multiple": (
        {"kind": "multiple"},
        lambda n, text: {"text": text, "second": text[:9], "label": ["a", "b"][: n % 3]},
    ),
    "classification number": (
        {"kind": "number"},
        lambda n, text: {"text": text, "label": n / 7},
    ),
    "tagging": (
        {},
        lambda n, text: {
            "tokens": text.split(),
            "tags": [("O", "B-X", "I-X")[len(word) % 3] for word in text.split()],
        },
    ),
    "question_answering": (
        {"stride": 8},
        lambda n, text: {"question": f"which {n}", "context": text, "answers": text[8:14]},
    ),
    "multiple_choice": (
        {},
        lambda n, text: {"question": text[:12], "choices": ["a", "bc", text[:9]], "label": n % 3},
    ),
    "sentence_embeddings": (
        {},
        lambda n, text: {"anchor": text[:9], "positive": text[:30], "negatives": TEXTS[: n % 3]},
    ),
    "late_interaction": (
        {},
        lambda n, text: {"anchor": text[:9], "positive": text[:30], "negatives": TEXTS[: n % 3]},
    ),
    "sparse_embeddings": ({}, lambda n, text: {"anchor": text[:9], "positive": text[:30]}),
    "reranking": ({}, lambda n, text: {"query": text[:7], "passage": text[:40], "label": n % 2}),
    "instruction": ({}, lambda n, text: {"messages": CHATS[n]}),
    "dpo": ({}, lambda n, text: {"prompt": text[:9], "chosen": text[9:30], "rejected": text[:12]}),
    "grpo": (
        {"rewards": ("exact_match",)},
        lambda n, text: {"prompt": text[:20], "answer": text[:3]},
    ),
}
# of equal texts: each gets a number, and it does not matter which
NUMBERS = ("texts",)
GOLDEN = json.loads((Path(__file__).parent / "golden_batches.json").read_text())


def experiment(folder, name, sources=()):
    objective = name.split()[0]
    options, make_row = CASES[name]
    chosen = registry.resolve_class("objectives", objective)(**options)
    skeleton = chosen.skeletons[0]
    rows = [json.dumps(make_row(n, text)) for n, text in enumerate(TEXTS)]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(rows) + "\n")
    layers = {f"{stack}_layers": 1 for stack in ("encoder", "decoder") if stack in skeleton}
    sizes = {"vocab_size": 0, "d_model": 8, "num_heads": 2, "mlp_dim": 16, **layers}
    family = "electra" if objective == "replaced_tokens" else FAMILIES[skeleton]
    head = required_head(chosen, skeleton)
    return ExperimentConfig(
        model=ModelConfig(family=family, head=head, **sizes),
        objective=chosen,
        data=DataConfig(
            path="" if sources else str(path),
            mixture={source: SourceConfig(path=str(path)) for source in sources},
            length=64,
            eval_fraction=0.2,
            cache=str(folder / "cache"),
            tokenizer=TokenizerConfig(name="bytes"),
        ),
    )


def renumbered(path, leaf):
    if path[-1].key not in NUMBERS:
        return leaf
    order = list(dict.fromkeys(leaf.reshape(-1).tolist()))
    return np.asarray([order.index(number) for number in leaf.reshape(-1).tolist()])


def hash_batches(batches):
    digest = hashlib.sha256()
    for batch in batches:
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
            leaf = renumbered(path, np.asarray(leaf))
            digest.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def joined(parts):
    """Puts together what the processes have of each batch."""
    for step in zip(*parts, strict=True):
        yield jax.tree.map(lambda *leaves: np.concatenate(leaves), *step)


def batches(cfg, processes=1):
    """Returns three training batches and a held-out one, as they are and packed or cut."""
    train = open_dataset(cfg)
    held_out = open_dataset(cfg, "eval")
    parts = []
    for rows in np.array_split(np.arange(8), processes):
        parts.append(itertools.islice(train.batches(batch_size=8, seed=3, rows=rows), 3))
    made = [*joined(parts), next(held_out.batches(batch_size=8))]
    packer = train.packer(8) or train.buckets(8)
    if packer:
        made += itertools.islice(train.batches(batch_size=8, seed=3, packer=packer), 2)
    return made


@pytest.mark.parametrize("name", CASES)
def test_batches_of_an_objective_stay(tmp_path, monkeypatch, name):
    cfg = experiment(tmp_path, name)
    due = GOLDEN[name]
    assert hash_batches(batches(cfg)) == due
    monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", 0)
    assert hash_batches(batches(cfg, processes=3)) == due, "from files, for three processes"
    assert hash_batches(batches(cfg)) == due, "at the second start"


def test_batches_of_a_mixture_stay(tmp_path):
    cfg = experiment(tmp_path, "causal_lm", sources=("one", "two"))
    assert hash_batches(batches(cfg)) == GOLDEN["a mixture"]
    assert hash_batches(batches(cfg, processes=3)) == GOLDEN["a mixture"]
