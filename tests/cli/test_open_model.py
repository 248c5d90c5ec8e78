"""Commands find out once what the model that they are given is."""

import pytest

from flaxformer_lite import __main__ as door
from flaxformer_lite.checkpoints import resolve_path
from tests.cli import models

ADDRESS = "gs://bucket/model"
COMMANDS = {
    "generate": ("gpt2", None, ["--prompt", "one two", "--max-new-tokens", "1"]),
    "embed": ("bert", None, ["--text", "one two", "--output", "vectors.npy"]),
    "look": ("gpt2", None, ["--text", "one two", "--output", "page.html"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_address_is_resolved_once(name, tmp_path, monkeypatch):
    family, head, arguments = COMMANDS[name]
    folder = models.directory(tmp_path / "model", family, head)
    asked = []

    def fetch_model(url, *, weights=True):
        asked.append(url)
        return folder

    monkeypatch.setattr(resolve_path, "fetch_model", fetch_model)
    monkeypatch.chdir(tmp_path)
    door.main([name, "--model", ADDRESS, *arguments])
    assert asked == [ADDRESS]
