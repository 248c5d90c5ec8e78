"""all-MiniLM-L6-v2, from its package, beside what transformers and torch computed once."""

import re
from pathlib import Path

import numpy as np
import pytest

from examples import sentence_similarity as example
from flaxformer_lite import load_tokenizer
from flaxformer_lite.__main__ import main

REFERENCE = np.load(Path(__file__).parent / "minilm_reference.npz")
TEXTS = [example.QUESTION, *example.SENTENCES]


@pytest.fixture(scope="module")
def directory():
    return example.model_directory()


def test_ids_are_the_references(directory):
    ids = load_tokenizer(directory)(TEXTS)["input_ids"]
    np.testing.assert_array_equal(ids, REFERENCE["input_ids"])


def test_vectors_are_the_references(directory):
    np.testing.assert_allclose(example.embed(directory, TEXTS), REFERENCE["vectors"], atol=1e-5)


def test_the_example_ranks(capsys):
    example.main(example.QUESTION)
    question, *vectors = REFERENCE["vectors"]
    order = [example.SENTENCES[i] for i in np.argsort(-(np.stack(vectors) @ question))]
    assert re.findall(r"^ ?-?\d\.\d{4}  (.*)$", capsys.readouterr().out, re.M) == order


def test_the_command_gives_the_same_vectors(directory, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    out = tmp_path / "vectors.npy"
    main(["embed", "--model", str(directory), "--file", str(texts), "--output", str(out)])
    np.testing.assert_allclose(np.load(out), REFERENCE["vectors"], atol=1e-5)


def test_the_weights_travel(directory, tmp_path, capsys):
    main(["convert", str(directory), str(tmp_path / "out")])
    vectors = example.embed(tmp_path / "out", TEXTS)
    np.testing.assert_allclose(vectors, REFERENCE["vectors"], atol=1e-5)
    kept, given = (folder / "tokenizer.json" for folder in (tmp_path / "out", directory))
    assert kept.read_bytes() == given.read_bytes()
