"""Texts with special tokens around them: as transformers frames and cuts them, with the characters
of each token."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from flaxformer_lite.config import ConfigError, TokenizerConfig
from flaxformer_lite.pretrained.tokenizer import framed, read_tokenizer
from flaxformer_lite.text.special_tokens import SPECIAL_PART, Frame, Spans
from flaxformer_lite.text.tokenizer import Bytes, HuggingFace, load
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


def test_a_first_text_may_be_kept_whole_and_characters_belong_to_their_part():
    joined = Frame((2,), (3,), (3,), 1).join(spans(3), spans(9, 200), limit=10, whole=0)
    assert joined.ids.tolist() == [2, 100, 101, 102, 3, 200, 201, 202, 203, 3]
    assert joined.part.tolist() == [SPECIAL_PART, 0, 0, 0, SPECIAL_PART, 1, 1, 1, 1, SPECIAL_PART]
    assert joined.start.tolist() == [0, 0, 1, 2, 0, 0, 1, 2, 3, 0] and joined.cut == 5


def test_special_tokens_that_a_text_spells_are_text():
    assert 3 not in words(bert()).encode_spans(["a [SEP] b"])[0].ids


def of_alphabet():
    vocab = {"[PAD]": 0, "[EOS]": 1, "[CLS]": 2, "[SEP]": 3}
    vocab |= {letter: 4 + i for i, letter in enumerate("abcdefghij")}
    made = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[PAD]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = bert()
    return made.to_str()


ONE = "a b c d e f g h"
TWO = "j i h g f"


@pytest.mark.parametrize("length", range(3, 17))
@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_cut_at_the_side_that_their_folder_says(side, length, tmp_path):
    """A run keeps the side with its own copy of the tokenizer."""
    (tmp_path / "tokenizer.json").write_text(of_alphabet())
    config = {"truncation_side": side, "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    library = tokenizers.Tokenizer.from_str(of_alphabet())
    library.enable_truncation(length, direction=side)
    read = load(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    read.save(run)
    for tokenizer in (read, load(run)):
        frame = tokenizer.frame("encoder")
        first, second = tokenizer.encode_spans([ONE, TWO])
        assert frame.join(first, limit=length).ids.tolist() == library.encode(ONE).ids
        joined = frame.join(first, second, limit=length)
        due = library.encode(ONE, TWO)
        assert joined.ids.tolist() == due.ids
        assert [int(i >= joined.second) for i in range(len(due.ids))] == due.type_ids
        for number, text in enumerate((ONE, TWO)):
            for column in np.flatnonzero(joined.part == number):
                piece = text[joined.start[column] : joined.end[column]]
                assert library.token_to_id(piece) == joined.ids[column]
        wrapped = framed(tokenizer, "encoder", as_published=True)
        assert wrapped.encode(ONE, max_length=length) == library.encode(ONE).ids
    published = read_tokenizer(tmp_path)
    assert published.encode(ONE, max_length=length) == library.encode(ONE).ids
    without = library.encode(ONE, add_special_tokens=False).ids
    assert published.encode(ONE, max_length=length, special_tokens=False) == without


def test_a_side_of_the_tokenizers_own_file_counts_where_the_folder_names_none(tmp_path):
    """As in transformers."""
    library = tokenizers.Tokenizer.from_str(of_alphabet())
    library.enable_truncation(5, direction="left")
    (tmp_path / "tokenizer.json").write_text(library.to_str())
    assert load(tmp_path).frame("encoder").truncation_side == "left"
    assert read_tokenizer(tmp_path).truncation_side == "left"
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "right"}')
    assert load(tmp_path).frame("encoder").truncation_side == "right"
    assert read_tokenizer(tmp_path).truncation_side == "right"


def test_a_side_that_cannot_be_followed_is_refused(tmp_path):
    trained = train(
        TokenizerConfig(name="sentencepiece", vocab_size=600), [TEXT * 20, "the end " * 90]
    )
    trained.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    with pytest.raises(ConfigError, match="truncation_side='left': cannot be followed with"):
        load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "middle"}')
    with pytest.raises(ConfigError, match="truncation_side='middle': must be right or left"):
        load(tmp_path)


def test_a_template_is_read_where_the_vocabulary_has_no_letter_a():
    made = tokenizers.Tokenizer(models.BPE({"<s>": 0, "y": 1}, []))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 0)]
    )
    known = HuggingFace(made.to_str().encode())
    assert known.template(1) == Frame((0,))
    assert known.template(2) == Frame((0,), (0,), (), 1)
