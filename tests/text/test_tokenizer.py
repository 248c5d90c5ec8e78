import itertools
import json
import sys

import numpy as np
import pytest
import tokenizers

from flaxformer_lite import load_tokenizer
from flaxformer_lite.config import ConfigError, TokenizerConfig
from flaxformer_lite.text import tokenizer
from flaxformer_lite.text.tokenizer_training import train

KINDS = ("byte_bpe", "sentencepiece", "bytes")
ALL = (*KINDS, "words")
STRANGE = [
    "",
    "plain words",
    "  two  spaces\n\n\ttab\r\n",
    "[MASK] <extra_id_0> </s> [PAD]",
    "日本 🙂 naïve",
    "Ġy ##z",
]

PANICS = (
    b'{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},'
    b' "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}'
)


@pytest.fixture(scope="module")
def trained():
    draw = np.random.default_rng(0)
    words = ["".join(chr(97 + c) for c in draw.integers(0, 26, n)) for n in draw.integers(2, 9, 60)]
    texts = [" ".join(draw.choice(words, 300)) + ".\n" for _ in range(20)]
    return {name: (train(TokenizerConfig(name=name, vocab_size=480), texts), texts) for name in ALL}


@pytest.mark.parametrize("name", KINDS)
def test_any_text_comes_back(trained, name):
    tok, texts = trained[name]
    for text in [*STRANGE, texts[0]]:
        ids = tok.encode(text)
        assert tok.decode(ids) == text
        assert b"".join(tok.pieces()[i] for i in ids).decode() == text
        assert not set(ids) & tok.specials(), "special tokens are never found in text"
    assert tok.encode_batch(STRANGE) == [tok.encode(text) for text in STRANGE]


@pytest.mark.parametrize("name", KINDS)
def test_half_of_a_surrogate_pair(trained, name, tmp_path):
    tok, _ = trained[name]
    tok.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    published = load_tokenizer(tmp_path)
    for encode in (tok.encode, tok.encode_spans, published.encode, published):
        with pytest.raises(ConfigError, match=r"holds half of a surrogate pair .*replace"):
            encode(["a\ud83d"] if encode == tok.encode_spans else "a\ud83d")


@pytest.mark.parametrize("name", ALL)
def test_ids_without_a_token_have_no_text(trained, name, tmp_path):
    """A model may have more logits than its tokenizer has tokens."""
    tok, texts = trained[name]
    tok.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    known = tok.encode(texts[0])[:4]
    strange = [tok.vocab_size, known[0], 10**6, *known[1:], -1]
    for one in (tok, load_tokenizer(tmp_path)):
        assert one.decode(strange) == one.decode(known) != ""
    assert load_tokenizer(tmp_path).token(tok.vocab_size) == f"<{tok.vocab_size}>"


@pytest.mark.parametrize("name", KINDS)
def test_special_tokens(trained, name):
    tok, _ = trained[name]
    assert tok.vocab_size <= 480 and len(tok.pieces()) == tok.vocab_size
    named = [tok.pad_id, tok.eos_id, tok.bos_id, tok.cls_id, tok.sep_id, tok.mask_id]
    assert len({*named, *tok.sentinel_ids}) == 106
    assert tok.sentinel_ids == tuple(range(tok.vocab_size - 1, tok.vocab_size - 101, -1)), (
        "descending, as T5's"
    )
    assert tok.decode([tok.cls_id, *tok.encode("text"), tok.sentinel_ids[0], tok.eos_id]) == "text"
    assert set(tok.ordinary_ids.tolist()).isdisjoint(tok.specials())


@pytest.mark.parametrize("name", KINDS)
def test_a_guarded_spelling_is_text(trained, name):
    tokenizer, _ = trained[name]
    spelling, number = next(iter(tokenizer.spelled.items()))
    for guard in "0123456789abcdef":  # one of them is in any mark
        assert tokenizer.encode_spelled(spelling, guard).ids.tolist() == [number]
    guarded = tokenizer.encode_spelled(f"{spelling[0]}17{spelling[1:]}", "17")
    assert guarded.ids.tolist() == tokenizer.encode(spelling)


@pytest.mark.parametrize("name", ALL)
def test_saved_and_loaded(trained, name, tmp_path):
    tok, texts = trained[name]
    tok.save(tmp_path)
    again = tokenizer.load(tmp_path)
    assert again.fingerprint == tok.fingerprint
    assert again.encode(texts[1]) == tok.encode(texts[1])
    assert tokenizer.load(tmp_path / tok.file).vocab_size == tok.vocab_size


@pytest.mark.parametrize("name", ALL)
def test_training_again_gives_the_same(trained, name):
    tok, texts = trained[name]
    assert (
        train(TokenizerConfig(name=name, vocab_size=480), iter(texts)).fingerprint
        == tok.fingerprint
    )


@pytest.mark.parametrize("name", ["byte_bpe", "sentencepiece"])
def test_trained_tokenizers_compress(trained, name):
    tok, texts = trained[name]
    assert len(tok.encode(texts[0])) < 0.7 * len(texts[0])


@pytest.mark.parametrize("name", ALL)
def test_words(trained, name):
    tok, texts = trained[name]
    text = texts[0][:100] + "(x1,y2)"
    ids = np.asarray(tok.encode(text))
    starts = tok.starts_word(ids)
    words = [
        b"".join(tok.pieces()[i] for i in run) for run in np.split(ids, np.flatnonzero(starts)[1:])
    ]
    for left, right in itertools.pairwise(words):
        assert not (left[-1:].isalnum() and right[:1].isalnum()), (left, right)
    assert sum(word.strip().isalnum() for word in words) > 5


def test_whole_words_in_lower_case_of_which_rare_ones_are_unknown():
    texts = ["The cat's tail: THE Cat's end.", "(dog) Dog; caf\u00e9, cafe\u0301 [MASK]"]
    tok = train(TokenizerConfig(name="words", vocab_size=200, min_count=2), texts)
    known = [tok.pieces()[i].decode() for i in tok.ordinary_ids]
    assert sorted(known) == [" caf\u00e9", " cat's", " dog", " the"]
    ids = tok.encode("The DOG, unheard; [MASK] cafe\u0301!")
    assert tok.decode(ids) == "the dog caf\u00e9" and len(ids) == 5
    assert not set(ids) & tok.specials(), "special tokens are never found in text"
    assert set(ids) - set(tok.ordinary_ids.tolist()) == {6}, (
        "the unknown word and [MASK]'s letters are one token"
    )
    few = train(TokenizerConfig(name="words", vocab_size=109), texts)
    assert [few.pieces()[i] for i in few.ordinary_ids] == [
        b" caf\xc3\xa9",
        b" cat's",
    ], "the most frequent, by the letter"


def test_counts_that_no_word_reaches_and_that_are_not_of_words():
    with pytest.raises(ConfigError, match=r"min_count=9:.*no word.*lower it"):
        train(TokenizerConfig(name="words", min_count=9), ["a word"])
    with pytest.raises(ConfigError, match=r"min_count=5:.*counts.*name='words'; for bytes set 0"):
        TokenizerConfig(name="bytes", min_count=5)
    with pytest.raises(ConfigError, match="vocab_size=107: words needs at least 108"):
        train(TokenizerConfig(name="words", vocab_size=107), ["a word"])


def test_a_vocabulary_without_room():
    for name, least in (("byte_bpe", 362), ("sentencepiece", 427)):
        with pytest.raises(
            ConfigError, match=rf"data\.tokenizer\.vocab_size=300: {name} needs at least {least}"
        ):
            train(TokenizerConfig(name=name, vocab_size=300), ["text"])


def test_a_published_tokenizer_json(tmp_path):
    vocab = {
        t: i
        for i, t in enumerate(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "chess", "."]
        )
    }
    tok = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tok.decoder = tokenizers.decoders.WordPiece()
    tok.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tok.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tok.enable_truncation(2)
    tok.save(str(tmp_path / "tokenizer.json"))
    ours = tokenizer.load(tmp_path / "tokenizer.json")
    assert (ours.pad_id, ours.eos_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 3, 2, 3, 4)
    assert ours.sentinel_ids == ()
    ids = ours.encode("playing chess.")
    assert ids == [5, 6, 7, 8], "no special tokens added, nothing cut off"
    assert ours.decode(ids) == "playing chess."
    assert ours.starts_word(np.asarray(ids)).tolist() == [True, False, True, True]


def test_special_tokens_are_text_even_where_the_model_knows_them_as_words(tmp_path):
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((c, -1.0) for c in "</s>ab▁")]
    tok = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    tok.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tok.add_tokens(["ab"])
    tok.save(str(tmp_path / "tokenizer.json"))
    ours = tokenizer.load(tmp_path / "tokenizer.json")
    assert tok.encode("a</s>ab").ids == [7, 1, 10], "as it was published"
    assert ours.encode("a</s>ab") == [7, 3, 4, 5, 6, 10] and ours.eos_id == 1
    assert ours.encode_batch(["<pad>", "a"]) == [[3, 2, 7, 2, 6], [7]]


def test_a_pattern_that_takes_too_many_steps_is_an_error(tmp_path):
    tok = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0, "</s>": 1}, unk_token="x"))
    tok.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("(x+x+)+y"), "isolated")
    tok.save(str(tmp_path / "tokenizer.json"))
    ours = tokenizer.load(tmp_path / "tokenizer.json")
    with pytest.raises(
        ConfigError,
        match=r"tokenizer\.json:.*fails.*shorten .* \(.*retry-limit-in-match over\)",
    ):
        ours.encode("x" * 40)
    assert ours.encode("xy") == [0]


def _replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


TENFOLD = _replace({"String": "a"}, "a" * 10)
INSERT = _replace({"Regex": "x*"}, "yy")  # between all characters


@pytest.mark.parametrize(
    "steps",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [TENFOLD] * 3}},
        {"decoder": {"type": "Sequence", "decoders": [TENFOLD] * 3}},
    ],
)
def test_steps_that_make_a_text_far_longer(trained, steps, tmp_path):
    tok, _ = trained["byte_bpe"]
    tok.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | steps))
    for read in (load_tokenizer, tokenizer.load):
        with pytest.raises(ConfigError, match="makes a text longer by more"):
            read(tmp_path)


def test_what_rust_prints_of_a_panic_is_left_out(tmp_path, capfd):
    (tmp_path / "tokenizer.json").write_bytes(PANICS)
    with pytest.raises(ConfigError, match="cannot be read as a tokenizer"):
        tokenizer.load(tmp_path)
    print("seen", file=sys.stderr, flush=True)
    assert capfd.readouterr().err == "seen\n"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("tokenizer.json", b"{}", "cannot be read as a tokenizer"),
        (
            "tokenizer.json",
            PANICS,
            r"cannot be read as a tokenizer .*Cannot parse precompiled_charsmap",
        ),
        ("spiece.model", b"nonsense", "cannot be read as a tokenizer"),
        ("vocab.txt", b"a\nb", r"must be a tokenizer\.json or a sentencepiece \.model"),
        ("missing.json", None, "cannot be read as a tokenizer .*No such file"),
    ],
)
def test_unreadable_files(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"data\.tokenizer\.path=.*{name}': {message}"):
        tokenizer.load(tmp_path / name)


def test_no_end_of_text(tmp_path):
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(
        str(tmp_path / "t.json")
    )
    with pytest.raises(ConfigError, match="no end-of-text token"):
        tokenizer.load(tmp_path / "t.json")
