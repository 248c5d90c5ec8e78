"""Tokenizers made of the files of older checkpoints, against those that transformers makes."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
import sentencepiece

from flaxformer_lite.config import ConfigError
from flaxformer_lite.model_details import load_tokenizer
from flaxformer_lite.text import older_files, tokenizer

FILES = Path(__file__).parents[2] / "fixtures" / "older_tokenizers"
# Their ids are in a file of their own, which training does not read.
NUMBERED = ("marian", "m2m_100", "wmt21", "blenderbot_small")
EXPECTED = json.loads(gzip.decompress((FILES / "expected.json.gz").read_bytes()))


def folder_of(name, folder):
    made = EXPECTED["folders"][name]
    for source, file in made["files"].items():
        shutil.copy(FILES / source, folder / file)
    for file, content in made["written"].items():
        (folder / file).write_text(json.dumps(content))
    return made


@pytest.mark.parametrize("name", EXPECTED["folders"])
def test_ids_are_those_of_transformers(name, tmp_path):
    expected = folder_of(name, tmp_path)
    ours = load_tokenizer(tmp_path)
    texts = EXPECTED["texts"]
    assert [ours.encode(text) for text in texts] == expected["ids"]
    bare = [ours.encode(text, special_tokens=False) for text in texts]
    assert [ours.decode(ids) for ids in bare] == expected["texts"]
    ids, types = expected["pair"]
    tokens = {role: ours.ids.get(role) for role in expected["tokens"]}
    assert tokens == expected["tokens"]
    if name in NUMBERED:
        with pytest.raises(ConfigError, match=r"one of which training needs"):
            tokenizer.load(tmp_path)
        return
    ours_ids, ours_types = ours.encode_pair(texts[0], texts[-1])
    assert ours_ids == ids and types in (None, ours_types)
    # the same ids are trained on
    given = tokenizer.load(tmp_path)
    assert given.encode(texts[0]) == bare[0] and given.file == "tokenizer.json"
    given.save(tmp_path)
    assert tokenizer.load(tmp_path).fingerprint == given.fingerprint


NLLB = {"tokenizer_class": "NllbTokenizer", "additional_special_tokens": ["eng_Latn", "fra_Latn"]}
PLBART = {"tokenizer_class": "PLBartTokenizer"}


@pytest.mark.parametrize(
    "model, written",
    [
        ("plain.model", {"model_type": "xglm"}),
        ("pairs.model", NLLB),
        ("plain.model", PLBART | {"src_lang": "python"}),
        ("plain.model", PLBART | {"language_codes": "multi"}),
    ],
)
def test_ids_are_those_of_sentencepiece(model, written, tmp_path):
    """transformers does not read the first two without a tokenizer.json."""
    shutil.copy(FILES / model, tmp_path / "sentencepiece.bpe.model")
    (tmp_path / "config.json").write_text(json.dumps(written))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(written))
    ours = load_tokenizer(tmp_path)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(FILES / model))
    for text in EXPECTED["texts"][:10]:
        ids = [1 + i if i else 3 for i in pieces.encode(text)]
        assert ours.encode(text, special_tokens=False) == ids
    if model == "pairs.model":
        english = pieces.get_piece_size() + 1
        assert ours.encode("a")[0] == english and ours.spelling(english + 1) == "fra_Latn"
    if written.get("tokenizer_class") == "PLBartTokenizer":
        language = 2 if "language_codes" in written else 1  # en_XX is the usual one of `multi`
        first = pieces.get_piece_size() + 1
        assert ours.encode("a")[-2:] == [2, first + language]
        assert ours.ids.get("mask") == (None if "language_codes" in written else first + 3)


def test_listed_tokens_stand_in_the_place_of_byt5s_sentinels(tmp_path):
    folder_of("byt5", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "ByT5Tokenizer", "extra_special_tokens": ["[NEW]"]}'
    )
    ours = load_tokenizer(tmp_path)
    assert len(ours) == 260 and ours.encode("a [NEW]") == [100, 35, 259, 1]


@pytest.mark.parametrize("is_complete", [True, False])
def test_special_tokens_map_precedes_an_incomplete_tokenizer_config(is_complete, tmp_path):
    folder_of("bert", tmp_path)
    config = {"pad_token": "[PAD]"} | ({"added_tokens_decoder": {}} if is_complete else {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[UNK]"}))
    ours = load_tokenizer(tmp_path)
    assert ours.spelling(ours.ids["pad"]) == ("[PAD]" if is_complete else "[UNK]")


@pytest.mark.parametrize(
    "name", ["albert", "roberta", "bert", "marian", "m2m_100", "blenderbot_small"]
)
def test_damaged_files_are_errors_or_other_tokenizers(name, tmp_path):
    made = folder_of(name, tmp_path)
    for file in made["files"].values():
        sound = (tmp_path / file).read_bytes()
        for at in range(0, len(sound), max(1, len(sound) // 20)):
            damaged = bytearray(sound)
            damaged[at] ^= 1 << (at % 8)
            for content in (bytes(damaged), sound[:at]):
                (tmp_path / file).write_bytes(content)
                try:
                    load_tokenizer(tmp_path).encode("a b")
                except ConfigError as error:
                    assert str(tmp_path) in str(error) or "tokenizer" in str(error)
        (tmp_path / file).write_bytes(sound)


@pytest.mark.parametrize(
    "name, written, message",
    [
        ("bert", {"tokenizer_class": "BertJapaneseTokenizer"}, "vocab.txt of a bert is not read"),
        ("bert", {"do_lower_case": "yes"}, "do_lower_case: must be true or false"),
        (
            "esm",
            {"added_tokens_decoder": {"90": {"content": "[NEW]", "special": True}}},
            r"'\[NEW\]'.*id 90, and has \d\d;",
        ),
        ("marian", {"extra_special_tokens": ["[NEW]"]}, r"adds '\[NEW\]', which vocab.json lacks"),
        ("m2m_100", {"mask_token": "[NEW]"}, r"adds '\[NEW\]', which vocab.json lacks"),
        ("mbart", {"src_lang": "tlh"}, "'tlh' is not in the vocabulary"),
        ("xlm_roberta", {"tokenizer_class": "NllbTokenizer"}, "must be of byte pairs"),
        ("m2m_100", {"src_lang": "tlh"}, "src_lang='tlh': no such language"),
        ("m2m_100", {"language_codes": "all"}, "must be m2m100 or wmt21"),
        ("albert", {"mask_token": 3}, "mask_token=3: must be a text"),
    ],
)
def test_what_cannot_be_is_refused(name, written, message, tmp_path):
    folder_of(name, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(written))
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(tmp_path)


def test_other_models_are_left_to_their_readers(tmp_path):
    shutil.copy(FILES / "plain.model", tmp_path / "spiece.model")
    for model in ("bert", "unheard"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
        assert older_files.make_tokenizer(tmp_path) is None
