import json

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import corpora


def written(name, path):
    corpora.write(name, path)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_stdlib_code_is_python(tmp_path):
    texts = [row["text"] for row in written("stdlib_code", tmp_path / "code.jsonl")]
    assert sum(map(len, texts)) > 5e6
    assert len(set(texts)) == len(texts) > 300
    assert any("class JSONDecoder" in text for text in texts)


def test_docstrings_and_pairs_come_from_the_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "PACKAGES", ("optax",))
    texts = [row["text"] for row in written("docstrings", tmp_path / "text.jsonl")]
    assert any("gradient" in text for text in texts)
    assert any('The "assert" statement' in text for text in texts), "the topics of help()"
    pairs = written("code_docstrings", tmp_path / "pairs.jsonl")
    assert len(pairs) > 100
    for pair in pairs:
        begins = pair["target"].splitlines()[0]
        assert begins not in pair["source"] or len(pair["target"]) <= 200
        assert "def " in pair["source"]


def test_code_without_its_docstring_still_parses(monkeypatch):
    words = "Twice x. " * 20
    source = f'def f(x):\n    """{words}"""\n    return 2 * x\n'
    monkeypatch.setattr(corpora, "PACKAGES", ("optax",))
    monkeypatch.setattr(corpora, "_sources", lambda root: [source, "not python"])
    (pair,) = corpora.code_docstrings()
    assert pair == {"source": "def f(x):\n    return 2 * x\n", "target": words}


def test_no_sources_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "_sources", lambda root: iter(()))
    with pytest.raises(ConfigError, match=r"data\.corpus='stdlib_code':.*no sources"):
        corpora.write("stdlib_code", tmp_path / "code.jsonl")
