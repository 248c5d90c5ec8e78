"""Words among the tokens of published tables, their neighbors and analogies, against numpy."""

import dataclasses
import functools

import numpy as np
import pytest

from flaxformer_lite import load_pretrained, load_tokenizer, load_word_vectors
from flaxformer_lite.config import ConfigError, TokenizerConfig
from flaxformer_lite.pretrained.word_vectors import WordVectors
from flaxformer_lite.text.tokenizer import Bytes
from flaxformer_lite.text.tokenizer_training import train
from tests.cli import models

PLACES = {
    "paris": (5, 0, 1),
    "france": (5, 1, 0),
    "london": (0, 5, 1),
    "england": (0.2, 5, 0),
    "calais": (5, 2, 0.5),
    "King": (-1, -1, 5),
    "king": (-1, -1.1, 5),
    "queen": (-1, -1.2, 5),
}


def made(places, encode=lambda text: []):
    table = np.asarray(list(places.values()), np.float32)
    return WordVectors(
        tuple(places),
        np.arange(len(table)),
        table,
        encode,
        [f" {word}".encode() for word in places],
    )


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_the_table_and_words_of_published_weights(tmp_path, family):
    folder = models.directory(tmp_path / family, family)
    vectors = load_word_vectors(folder)
    table = np.asarray(load_pretrained(folder)[1]["token_embed"]["embedding"])
    tokenizer = load_tokenizer(folder)
    assert {"one", "two", "eleven"} <= set(vectors.words) and len(set(vectors.words)) == len(
        vectors.words
    )
    for word in ("one", "eleven"):
        (index,) = tokenizer.encode(f" {word}", special_tokens=False)
        np.testing.assert_array_equal(vectors.vector(word), table[index])
    several = tokenizer.encode(" onetwo", special_tokens=False)
    assert len(several) > 1 and vectors.ids_of("onetwo") == several
    np.testing.assert_allclose(vectors.vector("onetwo"), table[several].mean(axis=0), rtol=1e-6)
    cosines = {
        word: table[i] @ table[vectors.ids_of("one")[0]] / np.linalg.norm(table[i])
        for word, i in zip(vectors.words, vectors.ids, strict=True)
    }
    best = sorted((word for word in cosines if word != "one"), key=lambda word: -cosines[word])[:3]
    assert [word for word, _ in vectors.similar("one", 3)] == best


def test_an_analogy_is_b_minus_a_plus_c_of_unit_vectors():
    vectors = made(PLACES)
    found = vectors.analogy("paris", "france", "london", 3)
    unit = {word: np.asarray(place) / np.linalg.norm(place) for word, place in PLACES.items()}
    wanted = unit["france"] - unit["paris"] + unit["london"]
    assert found[0][0] == "england"
    np.testing.assert_allclose(
        found[0][1], unit["england"] @ wanted / np.linalg.norm(wanted), rtol=1e-5
    )
    assert not {"paris", "france", "london"} & {word for word, _ in found}


def test_a_word_in_other_cases():
    vectors = made(PLACES)
    assert vectors.find("King") != vectors.find("king") and vectors.find("PARIS") == vectors.find(
        "paris"
    )
    assert [word for word, _ in vectors.similar("king", 2)] == ["queen", "paris"]
    capitals = made({word.capitalize(): place for word, place in PLACES.items() if word != "king"})
    assert capitals.analogy("paris", "france", "london", 1)[0][0] == "England"
    assert len(vectors.similar("king", 99)) == len(PLACES) - 2


def test_unknown_words(tmp_path):
    words = train(TokenizerConfig(name="words", vocab_size=200), ["king queen " * 3])
    (king,) = words.encode("king")
    unit = np.eye(200, 8, dtype=np.float32)
    ids = words.ordinary_ids
    names = tuple(words.pieces()[i].decode().strip() for i in ids)
    vectors = WordVectors(names, ids, unit, words.encode, words.pieces())
    assert vectors.ids_of("KING") == [king]
    with pytest.raises(ConfigError, match=r"'kings': not in the vocabulary; did you mean 'king'\?"):
        vectors.ids_of("kings")
    for blank in ("", "  ", "?!"):
        with pytest.raises(ConfigError, match="not in the vocabulary"):
            vectors.similar(blank)
    short = dataclasses.replace(vectors, words=(), ids=ids[:0], table_VD=unit[:3])
    with pytest.raises(ConfigError, match=r"'king': not in the vocabulary\."):
        short.vector("king")


def test_a_vocabulary_without_words_and_a_directory_without_tokenizer(tmp_path):
    folder = models.directory(tmp_path / "gpt2")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"gpt2: no tokenizer; put the model's tokenizer\.json"):
        load_word_vectors(folder)
    Bytes().save(folder)
    with pytest.raises(ConfigError, match=r"gpt2:.*no token"):
        load_word_vectors(folder)


def test_a_model_without_a_token_table(tmp_path, monkeypatch):
    folder = models.directory(tmp_path / "gpt2")
    bare = functools.partial(lambda *args, **options: (None, {"wte": {}}))
    monkeypatch.setattr("flaxformer_lite.model_details.open_pretrained", bare)
    with pytest.raises(ConfigError, match="gpt2: this model has no token table"):
        load_word_vectors(folder)
