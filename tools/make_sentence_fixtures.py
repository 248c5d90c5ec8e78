"""Makes tests/fixtures/sentences: tiny folders of sentence-transformers, with the vectors that it
computes itself.

python tools/make_sentence_fixtures.py    # in an environment with torch and sentence-transformers
"""

import json
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

OUT = Path("tests/fixtures/sentences")
TEXTS = ["zero one two", "four", "three two one zero four five six seven"]
WORDS = [
    "[PAD]",
    "[CLS]",
    "[SEP]",
    "[UNK]",
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
]
WIDTH = 16
LENGTH = 8


def encoder(folder: Path) -> None:
    words = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    named = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(
        tokenizer_object=words, **named, model_max_length=LENGTH
    ).save_pretrained(folder)
    sizes = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "initializer_range": 0.5,
    }
    BertModel(
        BertConfig(
            vocab_size=len(WORDS), hidden_size=WIDTH, max_position_embeddings=LENGTH, **sizes
        )
    ).save_pretrained(folder)


def main() -> None:
    torch.manual_seed(0)
    OUT.mkdir(parents=True, exist_ok=True)
    encoder(OUT / "encoder")
    dense = modules.Dense(WIDTH, 6, activation_function=torch.nn.Tanh())
    after = {
        "mean_normalize": [modules.Pooling(WIDTH, "mean"), modules.Normalize()],
        "cls_dense": [modules.Pooling(WIDTH, "cls"), dense],
        "mean_dense_normalize": [modules.Pooling(WIDTH, "mean"), dense, modules.Normalize()],
    }
    vectors = {}
    for name, layers in after.items():
        model = SentenceTransformer(
            modules=[modules.Transformer(str(OUT / "encoder"), max_seq_length=LENGTH), *layers],
            device="cpu",
        )
        model.save(str(OUT / name), create_model_card=False)
        vectors[name] = model.encode(TEXTS).tolist()
    expected = {"texts": TEXTS, "vectors": vectors, "poolings": poolings()}
    (OUT / "expected.json").write_text(json.dumps(expected) + "\n")


def poolings() -> dict[str, list[list[float]]]:
    """Returns the vectors of the folder mean_normalize with another pooling, by its config."""
    found = {}
    for mode in (*modules.Pooling.POOLING_MODES, ("mean", "max")):
        for include_prompt in (True, False):
            pooling = modules.Pooling(WIDTH, mode, include_prompt=include_prompt)
            model = SentenceTransformer(
                modules=[modules.Transformer(str(OUT / "mean_normalize")), pooling], device="cpu"
            )
            rows = model.encode(TEXTS, prompt="three four ").tolist()
            config = {"pooling_mode": mode, "include_prompt": include_prompt}
            found[json.dumps(config)] = [[round(x, 6) for x in row] for row in rows]
    return found


if __name__ == "__main__":
    main()
