"""Tokenizers as they lie beside published weights."""

import concurrent.futures
import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from flaxformer_lite.config import ConfigError, TokenizerConfig
from flaxformer_lite.model_details import load_tokenizer
from flaxformer_lite.models import build_model
from flaxformer_lite.pretrained import chat
from flaxformer_lite.pretrained.companions import publish_tokenizer
from flaxformer_lite.text import chat_template
from flaxformer_lite.text.tokenizer import Bytes
from flaxformer_lite.text.tokenizer_training import train
from tests.marks import daily
from tests.objectives import tables

IN_PROCESS = chat_template._in_process  # before tests/conftest.py replaces it
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"]


@pytest.fixture
def words(tmp_path):
    """A tokenizer.json of single words, which as published pads and cuts to three tokens."""
    tok = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok.add_special_tokens(WORDS[:5])
    tok.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tok.enable_padding(length=3)
    tok.enable_truncation(3)
    tok.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture(scope="module")
def pieces():
    texts = [
        "one two three four five six seven eight nine ten\n" * 9,
        "forty two is an answer\n" * 9,
    ]
    return train(TokenizerConfig(name="sentencepiece", vocab_size=600), texts)


def test_its_special_tokens_frame_and_are_found(words):
    tokenizer = load_tokenizer(words)
    assert tokenizer.encode("a [MASK] b x") == [2, 5, 4, 6, 1, 3]
    assert tokenizer.encode("a [MASK]", special_tokens=False) == [5, 4]
    assert tokenizer.encode("a b c d", max_length=4) == [2, 5, 6, 3], "what frames a text is kept"
    assert tokenizer.decode([2, 5, 6, 3]) == "a b" and tokenizer.token(4) == "[MASK]"


@pytest.mark.parametrize(
    ("side", "expected"), [("right", [2, 5, 3, 0, 0]), ("left", [0, 0, 2, 5, 3])]
)
def test_padding_is_on_its_side(words, side, expected):
    (words / "tokenizer_config.json").write_text(
        json.dumps({"padding_side": side, "pad_token": "[PAD]"})
    )
    inputs = load_tokenizer(words)(["a", "b c d"])
    np.testing.assert_array_equal(inputs["input_ids"][0], expected)
    np.testing.assert_array_equal(inputs["attention_mask"], inputs["input_ids"] != 0)


def test_what_the_config_names_goes_before_what_is_usual(words):
    assert load_tokenizer(words).ids["bos"] == 2
    named = {"eos_token": {"content": "d"}, "model_max_length": 4, "mask_token": "[MASK]"}
    (words / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer = load_tokenizer(words)
    assert tokenizer.ids == {"eos": 8, "mask": 4} and tokenizer.max_length == 4
    assert tokenizer("a b c d")["input_ids"].tolist() == [[2, 5, 6, 3]]
    (words / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    assert load_tokenizer(words).max_length is None


def test_sentencepiece_of_t5_ends_with_eos_and_knows_sentinels(pieces, tmp_path):
    (tmp_path / "spiece.model").write_bytes(pieces.definition)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("two") == [*pieces.encode("two"), pieces.eos_id]
    first, second = pieces.sentinel_ids[:2]
    ids = tokenizer.encode("one <extra_id_0> two<extra_id_1>")
    assert [i for i in ids if i in (first, second)] == [first, second] and ids[-1] == pieces.eos_id
    assert tokenizer.decode(tokenizer.encode("one two")) == "one two"


@pytest.mark.parametrize(
    ("config", "bos", "eos"),
    [({}, 0, 0), ({"add_bos_token": True}, 1, 0), ({"add_eos_token": True}, 0, 1)],
)
def test_sentencepiece_of_llama_begins_as_its_folder_says(pieces, tmp_path, config, bos, eos):
    (tmp_path / "tokenizer.model").write_bytes(pieces.definition)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ids = load_tokenizer(tmp_path).encode("two")
    assert ids == [pieces.bos_id] * bos + pieces.encode("two") + [pieces.eos_id] * eos


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer; put the model's tokenizer.json"),
        (
            {"vocab.txt": "a", "config.json": '{"model_type": "luke"}'},
            r"vocab.txt.*not read.*tokenizer.json. Make one",
        ),
        ({"vocab.txt": "a"}, r"no tokenizer can be made of vocab.txt"),
        (
            {"spiece.model": "a", "config.json": '{"model_type": "albert"}'},
            "no tokenizer",
        ),
        (
            {"spiece.model": "a", "config.json": '{"model_type": "t5"}'},
            "no tokenizer can be made of the sentencepiece model",
        ),
        ({"tokenizer.json": "{"}, "cannot be read as a tokenizer"),
        ({"tokenizer.json": "{", "tokenizer_config.json": "["}, "is not JSON"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, files, message):
    for name, text in {"config.json": '{"model_type": "bert"}', **files}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(tmp_path)


def test_a_chat_is_rendered_by_the_template(words, monkeypatch):
    monkeypatch.setattr(chat_template, "_in_process", IN_PROCESS)
    template = (
        "{%- for m in messages %}\n{% if loop.index > 9 %}{% break %}{% endif %}{{ m.role }}: {{"
        " m.content | tojson }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    (words / "chat_template.jinja").write_text(template)
    turns = [{"role": "user", "content": "é"}]
    assert chat.render(load_tokenizer(words), turns) == 'user: "é"\nassistant:'
    (words / "chat_template.jinja").unlink()
    named = [
        {"name": "tool", "template": "x"},
        {"name": "default", "template": "{{ messages[0].content }}!"},
    ]
    (words / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert chat.render(load_tokenizer(words), turns) == "é!"


LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLES = (
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{"
    " n.x }}"
)
TEMPLATES = {
    "{{ messages.": "expected name or number",
    "{{ ''.__class__.__mro__ }}": "'__class__' of 'str' object is unsafe",
    "{{ 1 + '1' }}": "TypeError: unsupported operand",
    "{{ 1 / 0 }}": "ZeroDivisionError: division by zero",
    "{% for i in range(10 ** 9) %}{% endfor %}": "OverflowError: Range too big",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError",
    "{{ raise_exception('no \x1b[31m roles') }}": r"\(no  \[31m roles\)",
    "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}": (
        "a prompt of more than [0-9,]+ characters"
    ),
    "{{ 'a' * 3_000_000 }}": "a prompt of more than [0-9,]+ characters",
    "{{ 'a' * 10 ** 12 }}": "it needs more than 1024 MiB",
    # Whichever limit a machine meets first.
    DOUBLES: "it (needs more than 1024 MiB|does not end within 1 s of processor time)",
    LOOPS: "it does not end within 1 s of processor time",
    "{{ 10 ** (10 ** 10) }}": "it does not end within 1 s of processor time",
    "{% if false %}{% endif %}": "the prompt is empty",
    "{{ '\\ud800' }}": "the prompt is not Unicode text",
}


@pytest.mark.parametrize("template", daily(TEMPLATES, TEMPLATES.keys() - {LOOPS}))
def test_a_bad_template_is_an_error_and_a_harmful_one_powerless(words, template, monkeypatch):
    monkeypatch.setattr(chat_template, "_in_process", IN_PROCESS)
    monkeypatch.setattr(chat_template, "START_SECONDS", 1)
    (words / "chat_template.jinja").write_text(template)
    with pytest.raises(
        ConfigError,
        match=f"chat: the model's template fails on this conversation.*{TEMPLATES[template]}",
    ):
        chat.render(load_tokenizer(words), [])


def test_special_tokens_in_a_text_can_be_text(words, pieces, tmp_path):
    tokenizer = load_tokenizer(words)
    assert tokenizer.encode("a [SEP] b") == [2, 5, 3, 6, 3]
    assert tokenizer.encode("a [SEP] b", allow_special=False) == [2, 5, 1, 6, 3]
    assert tokenizer("a [SEP]", allow_special=False)["input_ids"].tolist() == [[2, 5, 1, 3]]
    assert tokenizer.encode("a [SEP]", allow_special=False, special_tokens=False) == [5, 1]
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "spiece.model").write_bytes(pieces.definition)
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}')
    t5 = load_tokenizer(tmp_path / "t5")
    literal = t5.encode("one [EOS]<extra_id_0>", special_tokens=False, allow_special=False)
    assert t5.decode(literal) == "one [EOS]<extra_id_0>" and not set(literal) & {
        pieces.eos_id,
        *pieces.sentinel_ids,
    }
    assert t5.encode("one [EOS]", special_tokens=False)[-1] == pieces.eos_id


def test_a_special_token_of_one_character_stays_in_a_text(tmp_path):
    """As CLIP's padding is `!`; a BPE's merge may also make a special token of pieces with a
    prefix."""
    pieces = {"!": 0, "H": 1, "i": 2, "##b": 3, "a": 4, "ab": 5}
    merges = [("a", "##b")]
    tok = Tokenizer(models.BPE(pieces, merges, continuing_subword_prefix="##"))
    tok.add_special_tokens(["!", "ab"])
    tok.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("!H", allow_special=False) == [0, 1]
    assert tokenizer.encode("ab", allow_special=False) == [4, 3]
    assert tokenizer.encode("ab") == [5]


@pytest.mark.parametrize("kind", ["json", "sentencepiece"])
def test_nobodys_words_end_their_turn_in_a_chat(words, pieces, tmp_path, kind):
    folder = words
    end = 3
    text = [5, 1, 6]
    if kind == "sentencepiece":
        folder = tmp_path / "llama"
        end = pieces.eos_id
        text = pieces.encode("a [EOS] b")
        folder.mkdir()
        (folder / "tokenizer.model").write_bytes(pieces.definition)
        (folder / "config.json").write_text('{"model_type": "llama"}')
    token = {"json": "[SEP]", "sentencepiece": "[EOS]"}[kind]
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content | trim }}" + token + "{% endfor %}"
    )
    tokenizer = load_tokenizer(folder)
    turns = [{"role": "user", "content": f" a {token} b"}, {"role": "user", "content": "b"}]
    plain = [{"role": "user", "content": "a b"}]
    assert chat.encode(tokenizer, plain) == tokenizer.encode(
        chat.render(tokenizer, plain), special_tokens=False
    )
    assert chat.encode(tokenizer, turns) == [
        *text,
        end,
        *tokenizer.encode("b", special_tokens=False),
        end,
    ]


def test_threads_share_a_tokenizer(two):
    tokenizer = load_tokenizer(two)
    text = "a b c d " * 50
    encode = (
        lambda: tokenizer.encode(text),
        lambda: tokenizer.encode_pair(text, "a b", max_length=9),
        lambda: tokenizer.encode(text, allow_special=False),
    )
    due = [one() for one in encode]
    tokenizer = load_tokenizer(two)
    found = []

    def work(number):
        found.extend(encode[number % 3]() == due[number % 3] for _ in range(50))

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert len(found) == 8 * 50 and all(found)


@pytest.fixture
def two(words):
    """As BERT reads a question and its passage."""
    tok = Tokenizer.from_file(str(words / "tokenizer.json"))
    tok.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tok.save(str(words / "tokenizer.json"))
    return words


def test_pairs_are_told_apart(two):
    inputs = load_tokenizer(two)(["a b", "c"], ["d", "a b c d"])
    np.testing.assert_array_equal(
        inputs["input_ids"], [[2, 5, 6, 3, 8, 3, 0, 0], [2, 7, 3, 5, 6, 7, 8, 3]]
    )
    np.testing.assert_array_equal(
        inputs["token_type_ids"], [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]]
    )
    np.testing.assert_array_equal(inputs["attention_mask"], inputs["input_ids"] != 0)
    assert "token_type_ids" not in load_tokenizer(two)(["a b"])
    with pytest.raises(ConfigError, match="2 texts and 1 pairs"):
        load_tokenizer(two)(["a", "b"], ["c"])


@pytest.mark.parametrize("lengths", [(7, 1), (1, 7), (4, 4), (5, 3), (2, 9), (6, 6)])
@pytest.mark.parametrize("most", [5, 6, 9, 10])
@pytest.mark.parametrize("side", ["right", "left"])
def test_pairs_are_cut_as_the_library_cuts_them(two, lengths, most, side):
    (two / "tokenizer_config.json").write_text(json.dumps({"truncation_side": side}))
    texts = [" ".join(("abcd" * 3)[:n]) for n in lengths]
    library = Tokenizer.from_file(str(two / "tokenizer.json"))
    library.no_padding()
    library.enable_truncation(most, strategy="longest_first", direction=side)
    due = library.encode(*texts)
    assert load_tokenizer(two).encode_pair(*texts, max_length=most) == (due.ids, due.type_ids)
    assert load_tokenizer(two).encode(texts[0], max_length=most) == library.encode(texts[0]).ids


def test_a_sentencepiece_model_is_published_as_a_tokenizer_json(pieces, tmp_path):
    """By the file alone, transformers would take the steps of a class, which are others."""
    model = build_model(tables.tiny_llama(pieces.vocab_size))
    publish_tokenizer(pieces, model, tmp_path)
    assert not (tmp_path / "tokenizer.model").exists()
    published = load_tokenizer(tmp_path)
    for text in ("forty two", "  one\n\ttwo é 汉", "[EOS] three "):
        ids = published.encode(text, allow_special=False)
        assert ids == pieces.encode(text) and published.decode(ids) == text
    last = pieces.sentinel_ids[-1]
    assert published.encode("[EOS]<extra_id_99>") == [pieces.eos_id, last]
    assert published.ids == pieces.ids and len(published) == pieces.vocab_size


def test_pairs_without_a_tokenizer_json(tmp_path):
    Bytes().save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ConfigError, match=r"need a tokenizer\.json,.*join"):
        load_tokenizer(tmp_path)(["a"], ["b"])


def test_rows_of_one_length_whatever_the_texts(words):
    tokenizer = load_tokenizer(words)
    texts = ["a b", "a b c d d c b a"]
    plain = tokenizer(texts)
    longest = plain["input_ids"].shape[1]
    both = {"pad_to": 33, "pad_to_multiple_of": 32}
    for options, width in (({"pad_to": 64}, 64), ({"pad_to_multiple_of": 32}, 32), (both, 64)):
        padded = tokenizer(texts, **options)
        assert {array.shape for array in padded.values()} == {(2, width)}
        np.testing.assert_array_equal(padded["input_ids"][:, :longest], plain["input_ids"])
        assert not padded["attention_mask"][:, longest:].any()
        assert (padded["input_ids"][:, longest:] == tokenizer.pad_id).all()
    with pytest.raises(
        ConfigError,
        match=rf"pad_to=4: a row has {longest} tokens; raise it, or cut rows by max_length=4",
    ):
        tokenizer(texts, pad_to=4)
    assert tokenizer(texts, pad_to=4, max_length=4)["input_ids"].shape == (2, 4)
    with pytest.raises(ConfigError, match="pad_to_multiple_of=0: must be at least 1"):
        tokenizer(texts, pad_to_multiple_of=0)
