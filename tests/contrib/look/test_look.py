"""The command `look`: pages of published directories and workdirs, and every mistake in
one line."""

import json
import re
import shutil

import pytest

import flaxformer_lite
from flaxformer_lite import load_tokenizer
from flaxformer_lite.__main__ import main
from flaxformer_lite.config import TokenizerConfig
from flaxformer_lite.models import gpt2
from flaxformer_lite.text.tokenizer_training import train
from tests.cli import models
from tests.training import tiny_runs

TEXT = "zero one two"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    where = tmp_path_factory.mktemp("look")
    heads = {"gpt2": None, "bert": "masked_lm", "t5": None}
    made = {name: models.directory(where / name, name, head) for name, head in heads.items()}
    made["BARE"] = models.directory(where / "bare")
    (made["BARE"] / "tokenizer.json").unlink()
    return made


def look(folder, output, *flags):
    """The data of the page."""
    main(["look", "--model", str(folder), "--text", TEXT, "--output", str(output), *flags])
    pattern = r'<script type="application/json" id="data">(.*?)</script>'
    (held,) = re.findall(pattern, output.read_text(), re.S)
    return json.loads(held)


def test_a_decoder(folders, tmp_path, capsys):
    page = tmp_path / "page.html"
    data = look(folders["gpt2"], page)
    assert capsys.readouterr().out == f"{page}: {page.stat().st_size / 1000:,.0f} kB\n"
    tokenizer = load_tokenizer(folders["gpt2"])
    assert data["sequences"] == {"decoder": [tokenizer.token(i) for i in tokenizer.encode(TEXT)]}
    assert data["lens"]["tokens"]["shape"] == [3, len(data["sequences"]["decoder"]), 5]
    assert dict(data["facts"])["family"] == "gpt2" and len(data["attentions"]) == 1


@pytest.mark.nightly
def test_a_t5_with_more_logits_than_pieces(folders, tmp_path):
    """As training makes them: the table is padded to a round size."""
    folder = shutil.copytree(folders["t5"], tmp_path / "t5")
    (folder / "tokenizer.json").unlink()
    words = TokenizerConfig(name="sentencepiece", vocab_size=430)
    train(words, models.WORDS * 20).save(folder)
    data = look(folder, tmp_path / "page.html")
    shown = [*data["lens"]["words"], *data["sequences"]["decoder"], *data["losses"]["words"]]
    assert not [word for word in shown if re.fullmatch(r"<\d+>", word)]


def test_a_continuation(folders, tmp_path):
    data = look(folders["gpt2"], tmp_path / "page.html", "--target", " three")
    *prompt, last = data["losses"]["values"]
    assert prompt == [None] * len(prompt) and last is not None
    assert data["losses"]["words"][-1] == " three"


@pytest.mark.nightly
def test_an_encoder_decoder_answers_by_itself(folders, tmp_path, capsys):
    own = look(folders["t5"], tmp_path / "own.html", "--length", "6")
    main(["generate", "--model", str(folders["t5"]), "--prompt", TEXT, "--max_new_tokens", "6"])
    assert "".join(own["losses"]["words"]) == capsys.readouterr().out.splitlines()[-1]
    assert all(value < 6 for value in own["losses"]["values"]), "the likeliest"
    given = look(folders["t5"], tmp_path / "given.html", "--target", "seven")
    assert given["losses"]["words"] == ["s", "even"]


@pytest.mark.nightly
def test_a_masked_lm_and_a_long_text(folders, tmp_path, capsys):
    data = look(folders["bert"], tmp_path / "page.html", "--length", "4")
    assert "--text has 5 tokens and is cut at 4" in capsys.readouterr().err
    first, *_, last = data["sequences"]["encoder"]
    assert (first, last) == ("[CLS]", "[SEP]")
    assert data["losses"]["values"][0] is None and data["losses"]["values"][1] > 0


@pytest.mark.nightly
def test_a_workdir(tmp_path):
    model = gpt2.config("tiny", **tiny_runs.SIZES, decoder_layers=2, max_length=32, scan=True)
    cfg = tiny_runs.config(tmp_path, train={"steps": 1, "checkpoint_every": 1}, model=model)
    flaxformer_lite.run(cfg, tmp_path / "run")
    data = look(tmp_path / "run", tmp_path / "page.html")
    assert data["attentions"][0]["layers"] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--model": "nowhere"}, "nowhere: no such directory"),
        ({"--model": "BARE"}, "tokenizer"),
        ({"--text": " "}, "--text: is empty; pass the words to look at"),
        ({"--target": ""}, "--target: is empty"),
        ({"--output": "page.txt"}, "--output: page.txt: must end in .html"),
        ({"--output": "nowhere/page.html"}, "its folder does not exist; make it first"),
        ({"--output": "held.html"}, "is a folder; name a file"),
        ({"--length": "0"}, "--length: 0: must be at least 1"),
        ({"--model": "bert", "--target": "x"}, "--target: bert has no decoder"),
    ],
)
def test_mistakes_are_one_line(folders, tmp_path, monkeypatch, refusal, changes, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held.html").mkdir()
    flags = {"--model": "gpt2", "--text": TEXT, "--output": "page.html"} | changes
    flags["--model"] = str(folders.get(flags["--model"], flags["--model"]))
    words = [word for flag in flags.items() for word in flag if word is not None]
    assert message in refusal("look", *words)
    assert not (tmp_path / "page.html").exists()
