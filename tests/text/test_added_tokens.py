"""Tokens and steps that a folder states beside tokenizer.json, against transformers' ids."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from flaxformer_lite.config import ConfigError
from flaxformer_lite.model_details import load_tokenizer
from flaxformer_lite.text import tokenizer

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] hello again [ world ] u uni Uni ünï Hello 汉 字 汉字 b"
VOCABULARY = {token: index for index, token in enumerate(WORDS.split())}
ROLES = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
NEW = {"content": "[WORLD]", "special": True, "normalized": False}
TEXT = "Hello [WORLD] again"


def write(folder, config, added=None, kind="bert", **options):
    made = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(**options)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(list(ROLES.values()))
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(ROLES | config))
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    if added is not None:
        (folder / "added_tokens.json").write_text(json.dumps(added))


@pytest.mark.parametrize(
    "config, added",
    [
        ({}, {"[WORLD]": 19}),
        ({}, {"[WORLD]": 30}),  # the id is not followed
        ({"added_tokens_decoder": {"19": NEW, "20": {"content": ""}}}, None),
        ({"additional_special_tokens": ["[WORLD]"]}, None),
        ({"extra_special_tokens": [{"__type": "AddedToken", **NEW}]}, None),
        ({"extra_special_tokens": {"world_token": "[WORLD]"}}, None),
        ({"world_token": "[WORLD]"}, None),
        ({"bos_token": "[WORLD]"}, None),
    ],
)
def test_tokens_that_the_file_lacks_are_added(config, added, tmp_path, caplog):
    write(tmp_path, {"tokenizer_class": "BertTokenizer", **config}, added)
    read = load_tokenizer(tmp_path)
    assert read.encode(TEXT) == [2, 5, 19, 6, 3] and len(read) == 20
    assert ("'[WORLD]' is said to have the id 30, and has 19" in caplog.text) == (
        added == {"[WORLD]": 30}
    )
    # a special token is text in what is trained on, another is not
    trained = tokenizer.load(tmp_path)
    assert trained.encode(TEXT) == ([5, 19, 6] if added else [5, 7, 8, 9, 6])
    assert trained.vocab_size == 20


@pytest.mark.parametrize("name, first", [("BertTokenizer", 19), ("PreTrainedTokenizerFast", 2)])
def test_a_class_puts_the_named_tokens_around_texts(name, first, tmp_path):
    write(tmp_path, {"tokenizer_class": name, "cls_token": "[WORLD]", "sep_token": "b"})
    read = load_tokenizer(tmp_path)
    last = {19: VOCABULARY["b"], 2: 3}[first]
    assert read.encode("again") == [first, 6, last]
    assert read.encode_pair("again", "again")[0] == [first, 6, last, 6, last]
    assert (read.ids["cls"], read.ids["sep"]) == (19, VOCABULARY["b"])


FILE = {"lowercase": True}
CASED = {"lowercase": False, "strip_accents": None}


@pytest.mark.parametrize(
    "config, kind, options, ids",
    [
        ({"do_lower_case": False}, "bert", FILE, [14, 13, 15, 16]),
        ({"do_lower_case": True, "strip_accents": False}, "bert", CASED, [5, 13, 15, 16]),
        ({"do_lower_case": True, "tokenize_chinese_chars": False}, "bert", CASED, [5, 11, 17]),
        ({"do_lower_case": False}, "modernbert", FILE, [5, 11, 15, 16]),  # takes the file as it is
    ],
)
def test_the_fields_of_a_class_precede_the_file(config, kind, options, ids, tmp_path):
    write(tmp_path, {"tokenizer_class": "BertTokenizer", **config}, kind=kind, **options)
    assert load_tokenizer(tmp_path).encode("Hello ünï 汉字", special_tokens=False) == ids
    assert tokenizer.load(tmp_path).encode("Hello ünï 汉字") == ids


@pytest.mark.parametrize(
    "written, message",
    [
        ({"extra_special_tokens": "[WORLD]"}, "extra_special_tokens=.*must be a list of tokens"),
        ({"added_tokens_decoder": ["a"]}, "must be an object of tokens by id"),
    ],
)
def test_lists_of_tokens_that_cannot_be_are_refused(written, message, tmp_path):
    write(tmp_path, written)
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(tmp_path)
