"""Makes tests/fixtures/heads: a tiny cross-encoder with the scores and metrics of
sentence-transformers, and tiny NLI classifiers with the scores of transformers' pipeline for
zero-shot classification.

python tools/make_head_fixtures.py    # in an environment with torch and sentence-transformers
"""

import json
import random
import shutil
import tempfile
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    pipeline,
)

OUT = Path("tests/fixtures/heads")
WORDS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven"),
    *("This", "text", "is", "about", "billing", "refund", "other", "."),
]
LENGTH = 20
WIDTH = 6
QUERIES = 4
PASSAGES = 12  # of a query: more than the ten that the metrics read
LABELS = ["billing", "refund", "other"]
HYPOTHESIS = "This text is about {}."
TEXTS = ["one two three", "refund four five", "six seven " * 12 + "billing"]
SIZES = {"vocab_size": 4 + len(WORDS), "hidden_size": WIDTH, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "intermediate_size": WIDTH, "initializer_range": 0.8}
BART = {"vocab_size": 4 + len(WORDS), "d_model": WIDTH, "init_std": 0.8}
for side in ("encoder", "decoder"):
    BART |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": WIDTH}
NLI = {
    "bart": (
        BartForSequenceClassification,
        BartConfig(**BART, max_position_embeddings=LENGTH),
        ("contradiction", "neutral", "entailment"),
    ),
    "deberta": (
        DebertaV2ForSequenceClassification,
        DebertaV2Config(
            **SIZES,
            max_position_embeddings=LENGTH,
            relative_attention=True,
            position_buckets=4,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type="p2c|c2p",
            type_vocab_size=0,
            position_biased_input=False,
        ),
        ("entailment", "neutral", "contradiction"),
    ),
    "roberta": (
        RobertaForSequenceClassification,
        RobertaConfig(**SIZES, max_position_embeddings=LENGTH + 2, type_vocab_size=1),
        ("CONTRADICTION", "ENTAILMENT"),
    ),
}


def write_tokenizer(folder: Path, names: list[str], template: tuple[str, str]) -> None:
    words = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate([*names, *WORDS])}, unk_token=names[3])
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    single, pair = template
    specials = [(name, i) for i, name in enumerate(names)]
    words.post_processor = processors.TemplateProcessing(single, pair, special_tokens=specials)
    roles = {"pad_token": "pad", "cls_token": "cls", "sep_token": "sep", "unk_token": "unk"}
    if names[0] == "<s>":
        roles = {"bos_token": "s", "pad_token": "pad", "eos_token": "/s", "unk_token": "unk"}
    named = {}
    for role, name in roles.items():
        named[role] = next(each for each in names if each.strip("<[]>").lower() == name)
    types = ["input_ids", "token_type_ids", "attention_mask"]
    if names[0] == "<s>":
        types.remove("token_type_ids")
    PreTrainedTokenizerFast(
        tokenizer_object=words, **named, model_max_length=LENGTH, model_input_names=types
    ).save_pretrained(folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text())) + "\n")  # smaller without indents


def write_bert_tokenizer(folder: Path) -> None:
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    write_tokenizer(folder, names, ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"))


def write_roberta_tokenizer(folder: Path) -> None:
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    write_tokenizer(folder, names, ("<s> $A </s>", "<s> $A </s> </s> $B </s>"))


def passages(draw: random.Random) -> list[dict]:
    rows = []
    for query in range(QUERIES):
        for _ in range(PASSAGES):
            words = draw.choices(WORDS[:8], k=draw.randint(1, 24))
            row = {"query": f"{WORDS[query]} {WORDS[query + 1]}", "passage": " ".join(words)}
            rows.append(row | {"label": int(draw.random() < 0.3)})
        rows[-1]["label"] = 1
    return rows


def rerank(draw: random.Random) -> dict:
    folder = OUT / "reranker"
    config = BertConfig(**SIZES, max_position_embeddings=LENGTH, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(folder)
    write_bert_tokenizer(folder)
    rows = passages(draw)
    pairs = [(row["query"], row["passage"]) for row in rows]
    scores = {}
    for activation in ("Sigmoid", "Identity", "Tanh"):
        model = CrossEncoder(str(folder), activation_fn=getattr(torch.nn, activation)())
        scores[activation] = [round(float(score), 6) for score in model.predict(pairs)]
    samples = []
    for query in dict.fromkeys(row["query"] for row in rows):
        sample = {"query": query, "positive": [], "negative": []}
        for row in rows:
            if row["query"] == query:
                sample["positive" if row["label"] else "negative"].append(row["passage"])
        samples.append(sample)
    found = CrossEncoderRerankingEvaluator(samples, write_csv=False)(model)
    metrics = {"mrr_10": found["mrr@10"], "ndcg_10": found["ndcg@10"]}
    # as version 6 writes a folder: in config_sentence_transformers.json
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved, create_model_card=False)
        saved_config = json.loads((Path(saved) / "config_sentence_transformers.json").read_text())
    saved_config.pop("__version__")
    return {"rows": rows, "scores": scores, "metrics": metrics, "config": saved_config}


def zero_shot() -> dict:
    expected = {"labels": LABELS, "hypothesis": HYPOTHESIS, "texts": TEXTS, "scores": {}}
    for name, (model_class, config, labels) in NLI.items():
        folder = OUT / f"nli_{name}"
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: i for i, label in enumerate(labels)}
        model_class(config).save_pretrained(folder)
        if name == "deberta":
            write_bert_tokenizer(folder)
        else:
            write_roberta_tokenizer(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        classify = pipeline("zero-shot-classification", model=str(folder), device="cpu")
        scores = {}
        for way in ("single", "multi"):
            rows = []
            for found in classify(
                TEXTS, LABELS, hypothesis_template=HYPOTHESIS, multi_label=way == "multi"
            ):
                by_label = dict(zip(found["labels"], found["scores"], strict=True))
                rows.append([round(by_label[label], 6) for label in LABELS])
            scores[way] = rows
        lone = classify(TEXTS, LABELS[:1], hypothesis_template=HYPOTHESIS)
        scores["lone"] = [round(found["scores"][0], 6) for found in lone]
        expected["scores"][name] = scores
    return expected


def problems() -> dict:
    """Returns the scores of a classifier's labels by its problem_type."""
    found = {}
    for problem in ("single_label_classification", "multi_label_classification", "regression"):
        classify = pipeline("text-classification", model=str(OUT / "nli_bart"), device="cpu")
        classify.model.config.problem_type = problem
        labels = NLI["bart"][2]
        rows = []
        for scores in classify(TEXTS[:2], top_k=None):
            by_label = {each["label"]: each["score"] for each in scores}
            rows.append([round(by_label[label], 6) for label in labels])
        found[problem] = rows
    return found


def main() -> None:
    torch.manual_seed(0)
    shutil.rmtree(OUT, ignore_errors=True)
    expected = {"rerank": rerank(random.Random(0)), "zero_shot": zero_shot()}
    expected["problems"] = problems()
    (OUT / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
