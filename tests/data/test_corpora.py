import json

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import corpora


def test_stdlib_code_is_python(tmp_path):
    corpora.write("stdlib_code", tmp_path / "code.jsonl")
    texts = [
        json.loads(line)["text"] for line in (tmp_path / "code.jsonl").read_text().splitlines()
    ]
    assert sum(map(len, texts)) > 5e6
    assert len(set(texts)) == len(texts) > 300
    assert any("class JSONDecoder" in text for text in texts)


def test_docstrings_and_pairs_come_from_the_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "PACKAGES", ("optax",))
    corpora.write("docstrings", tmp_path / "text.jsonl")
    texts = [
        json.loads(line)["text"] for line in (tmp_path / "text.jsonl").read_text().splitlines()
    ]
    assert any("gradient" in text for text in texts)
    assert any('The "assert" statement' in text for text in texts), "the topics of help()"
    corpora.write("code_docstrings", tmp_path / "pairs.jsonl")
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert len(pairs) > 100
    assert all(
        pair["target"].splitlines()[0] not in pair["source"]
        for pair in pairs
        if len(pair["target"]) > 200
    )
    assert sum("def " in pair["source"] for pair in pairs) == len(pairs)


def test_code_without_its_docstring_still_parses(monkeypatch):
    source = 'def f(x):\n    """' + "Twice x. " * 20 + '"""\n    return 2 * x\n'
    monkeypatch.setattr(corpora, "PACKAGES", ("optax",))
    monkeypatch.setattr(corpora, "_sources", lambda root: [source, "not python"])
    (pair,) = corpora.code_docstrings()
    assert pair == {
        "source": "def f(x):\n    return 2 * x\n",
        "target": ("Twice x. " * 20).strip() + " ",
    }


def test_no_sources_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "_sources", lambda root: iter(()))
    with pytest.raises(ConfigError, match=r"data\.corpus='stdlib_code':.*no sources"):
        corpora.write("stdlib_code", tmp_path / "code.jsonl")
