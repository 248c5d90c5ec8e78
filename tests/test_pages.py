"""Configs by name: the shipped pages, from wherever they are, and a person's own files."""

import pytest

from flaxformer_lite import pages
from flaxformer_lite.config.rules import ConfigError


def test_a_page_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pages.locate("gpt2_tiny") == str(pages.folder() / "gpt2_tiny.py")
    assert pages.locate("gpt2_tiny:rope") == f"{pages.folder() / 'gpt2_tiny.py'}:rope"
    assert "gpt2_tiny" in pages.names() and "__init__" not in pages.names()


def test_a_file_is_named_with_a_slash_or_its_suffix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2_tiny").touch()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/mine.py").touch()
    (tmp_path / "own").touch()
    assert pages.locate("gpt2_tiny:x") == f"{pages.folder() / 'gpt2_tiny.py'}:x"  # not ./gpt2_tiny
    assert pages.locate("./gpt2_tiny:x") == "gpt2_tiny:x"
    assert pages.locate("./own") == "own"
    with pytest.raises(ConfigError, match=r"no such page; .* a slash, as \./FILE, or ends in \.py"):
        pages.locate("own")
    assert pages.locate("configs/mine.py") == "configs/mine.py"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("gpt2_tny:rope", "=gpt2_tny:rope: no such page; did you mean 'gpt2_tiny'.*; the pages "),
        ("configs/gpt2_tiny.py", "no such file; did you mean 'gpt2_tiny'"),
        ("zzz", "--config=zzz: no such page; the pages are bert_base, "),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_page_and_all(
    value, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        pages.locate(value)


def test_pages_build_on_pages():
    small = pages.get_config("gpt2_small")
    large = pages.get_config("gpt2_large")
    assert large.train.steps == small.train.steps and large.model.d_model > small.model.d_model
    assert pages.get_config("gpt2_tiny", "alibi").model.position.name == "alibi"
