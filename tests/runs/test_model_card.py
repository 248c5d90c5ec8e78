"""Model cards: what they state, what they keep, and that none stops a conversion."""

import re
import shutil

import pytest

import flaxformer_lite
from flaxformer_lite.__main__ import main
from flaxformer_lite.models import bert, t5
from flaxformer_lite.runs.report import model_card
from flaxformer_lite.runs.report.model_card import CardSource, make_card, write_card
from tests.cli import models
from tests.training import tiny_runs

FRONT = "---\nlicense: apache-2.0\nlanguage:\n- en\n- fr\ndatasets: secret\n---\n# a model\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    flaxformer_lite.run(tiny_runs.config(folder, train={"steps": 2}), folder / "run")
    return folder / "run"


@pytest.fixture
def workdir(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def code(card):
    return re.search(r"```python\n(.*?)```", card, re.S)[1]


def test_a_workdir_has_a_card_with_its_scores(run):
    card = (run / "README.md").read_text()
    assert "# run\n" in card and "| step | 2 |" in card and "| trained on | text.jsonl |" in card
    assert 'load_pretrained("run")' in code(card) and "transformers import" not in card
    assert str(run.parent) not in card, "the folders of one machine"


def test_a_card_that_a_person_changed_stays_and_ours_is_written_anew(run, workdir):
    path = workdir / "README.md"
    cfg = tiny_runs.config(run.parent, train={"steps": 3})
    flaxformer_lite.run(cfg, workdir)
    assert "| step | 3 |" in path.read_text()
    path.write_text(path.read_text().replace("# run", "# My model"))
    assert not write_card(workdir, make_card("org/a", bert.config("tiny"), 3, CardSource()))
    assert "# My model" in path.read_text()


def test_converted_weights_have_a_card_with_the_license_of_their_base(tmp_path, capsys):
    folder = models.directory(tmp_path / "gpt2", "gpt2")
    (folder / "README.md").write_text(FRONT)
    main(["convert", str(folder), str(tmp_path / "new")])
    card = (tmp_path / "new" / "README.md").read_text()
    front = card.split("---\n")[1]
    assert "license: apache-2.0\nlanguage:\n- en\n- fr\n" in front and "secret" not in card
    assert 'AutoModelForCausalLM.from_pretrained("new")' in code(card)


def test_the_current_folder_is_no_base(workdir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text(FRONT)
    main(["convert", str(workdir), "new"])
    assert "apache" not in (tmp_path / "new" / "README.md").read_text()


def test_a_card_that_cannot_be_made_stops_no_conversion(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError("a full disk")

    monkeypatch.setattr(model_card, "make_card", fail)
    folder = models.directory(tmp_path / "gpt2", "gpt2")
    main(["convert", str(folder), str(tmp_path / "new")])
    assert "no model card (a full disk)" in capsys.readouterr().err
    assert (tmp_path / "new" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("cfg", "source", "line"),
    [
        (t5.config("tiny"), CardSource(), "AutoModelForSeq2SeqLM"),
        (bert.config("tiny", head="none"), CardSource(kind="sentence-transformers"), "SentenceT"),
        (bert.config("tiny"), CardSource("org/base", kind="peft"), "PeftModel.from_pretrained"),
    ],
)
def test_each_kind_is_loaded_by_its_library(cfg, source, line):
    card = make_card("hf://org/new", cfg, 3, source._replace(labels=("ham", "spam")))
    assert line in code(card) and f"library_name: {source.kind}" in card
    assert 'org/new"' in code(card)
    assert "`ham`, `spam`, in the order of the logits." in card
    compile(code(card), "card", "exec")


def test_of_several_files_the_folders_are_left_out():
    assert model_card._last_name("/home/me/a.txt, /b/c.txt") == "a.txt, c.txt"
    assert model_card._last_name("hf://datasets/a/b,/home/me/y") == "hf://datasets/a/b, y"
