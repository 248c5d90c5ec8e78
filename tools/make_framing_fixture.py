"""Makes tests/fixtures/framing: an odd tokenizer, and what transformers makes of texts with it.

Its special tokens have names that no other tokenizer has, beside one that is usual and means
nothing here; it cuts and pads at the left; and tokenizer_config.json asks for a space before texts
where tokenizer.json does not.

    python tools/make_framing_fixture.py  # where transformers 5.23 is installed
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

FOLDER = Path(__file__).parents[1] / "tests/fixtures/framing"
SPECIALS = ["<|begin|>", "<|fin|>", "<|void|>", "<|endoftext|>"]
LESSONS = ["the cat sat on the mat", "a dog ran to the cat", "one two three four five six"]
TEXTS = ["the cat sat", "a dog", "one two three four five six", "<|fin|> is text"]
LIMIT = 5  # tokens, where texts are cut


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LESSONS * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A",
        pair="<|begin|> $A <|fin|> $B:1",
        special_tokens=[("<|begin|>", 0), ("<|fin|>", 1)],
    )
    return tokenizer


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    train().save(str(FOLDER / "tokenizer.json"))
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": "<|begin|>",
        "eos_token": "<|fin|>",
        "pad_token": "<|void|>",
        "unk_token": None,
        "add_prefix_space": True,
        "truncation_side": "left",
        "padding_side": "left",
    }
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    theirs = AutoTokenizer.from_pretrained(FOLDER)
    padded = theirs(TEXTS[:3], padding=True)
    expected = {
        "texts": TEXTS,
        "limit": LIMIT,
        "bare": theirs(TEXTS[:3], add_special_tokens=False)["input_ids"],
        "framed": theirs(TEXTS[:3])["input_ids"],
        "cut": theirs(TEXTS[:3], truncation=True, max_length=LIMIT)["input_ids"],
        "padded": padded["input_ids"],
        "mask": padded["attention_mask"],
        "roles": [theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id],
    }
    (FOLDER / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
