"""Texts with special tokens around them: as transformers frames and cuts them, with the characters
of each token."""

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from flaxformer_lite.config import TokenizerConfig
from flaxformer_lite.text.special_tokens import SPECIAL, Frame, Spans
from flaxformer_lite.text.tokenizer import Bytes, HuggingFace
from flaxformer_lite.text.tokenizer_training import train

TEXT = "Grüße, naïve 漢字\n  \U0001f600 end"


def words(template=None):
    vocab = {"[PAD]": 0, "[EOS]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "b": 5, "c": 6}
    made = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[PAD]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = template
    return HuggingFace(made.to_str().encode())


def bert():
    return processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )


def roberta():
    return processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )


@pytest.mark.parametrize("skeleton", ["encoder", "decoder", "encoder_decoder"])
def test_the_tokenizers_own_template_else_the_usual(skeleton):
    assert words(roberta()).frame(skeleton) == Frame((2,), (3, 3), (3,), 0)
    assert words(bert()).frame(skeleton) == Frame((2,), (3,), (3,), int(skeleton == "encoder"))
    usual = {
        "encoder": Frame((2,), (3,), (3,), 1),
        "decoder": Frame(),
        "encoder_decoder": Frame((), (1,), (1,), 0),
    }
    assert words().frame(skeleton) == usual[skeleton]


@pytest.mark.parametrize("name", ["bytes", "byte_bpe", "sentencepiece"])
def test_spans_are_the_same_tokens_and_cover_the_text(name):
    tokenizer = (
        Bytes()
        if name == "bytes"
        else train(TokenizerConfig(name=name, vocab_size=600), [TEXT * 20, "the end " * 90])
    )
    spans, none = tokenizer.encode_spans([TEXT, ""])
    assert spans.ids.tolist() == tokenizer.encode(TEXT) and len(none.ids) == 0
    assert (spans.start <= spans.end).all() and spans.end[-1] == len(TEXT)
    covered = np.zeros(len(TEXT), bool)
    for start, end in zip(spans.start, spans.end, strict=True):
        covered[start:end] = True
    assert covered.all()


def spans(count, first=100):
    numbers = np.arange(count, dtype=np.int32)
    return Spans(numbers + first, numbers, numbers + 1)


@pytest.mark.parametrize("one", range(7))
@pytest.mark.parametrize("two", range(7))
def test_pairs_are_cut_as_the_library_cuts_them(one, two):
    tokenizer = words(bert()).library
    tokenizer.enable_truncation(9, strategy="longest_first")
    due = tokenizer.encode("a " * one, "b " * two)
    first, second = (spans(n)._replace(ids=np.full(n, token)) for n, token in ((one, 4), (two, 5)))
    joined = Frame((2,), (3,), (3,), 1).join(first, second, limit=9)
    assert joined.ids.tolist() == due.ids and joined.types.tolist() == due.type_ids
    assert joined.cut == one + two - (len(due.ids) - 3)


def test_a_first_text_may_be_kept_whole_and_characters_belong_to_their_part():
    joined = Frame((2,), (3,), (3,), 1).join(spans(3), spans(9, 200), limit=10, keep_first=True)
    assert joined.ids.tolist() == [2, 100, 101, 102, 3, 200, 201, 202, 203, 3]
    assert joined.part.tolist() == [SPECIAL, 0, 0, 0, SPECIAL, 1, 1, 1, 1, SPECIAL]
    assert joined.start.tolist() == [0, 0, 1, 2, 0, 0, 1, 2, 3, 0] and joined.cut == 5


def test_special_tokens_that_a_text_spells_are_text():
    assert 3 not in words(bert()).encode_spans(["a [SEP] b"])[0].ids
