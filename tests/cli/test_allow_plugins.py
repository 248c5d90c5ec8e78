"""Code that a directory names is imported only if the user allows it: every reader, every field."""

import contextlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite import (
    __main__ as door,
    load_labels,
    load_pretrained,
    load_tokenizer,
    model_details,
    open_model,
    save_model,
)
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import ConfigError, fingerprint
from flaxformer_lite.runs import batch_history, evaluate_file, replay
from flaxformer_lite.runs.start import resume
from flaxformer_lite.save_model import save_pretrained
from tests.cli import models
from tests.cli.models import weights
from tests.training import tiny_runs

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

EVIL = "import pathlib\npathlib.Path({!r}).touch()\nclass X: pass\n"
KIND = {"window": None, "position": None, "mixer": None, "feed_forward": None, "norm_at": None}
FIELDS = {  # the field of config.json -> its value
    "model.family": "evil:X",
    "model.attention": "evil:X",
    "model.position.name": "evil:X",
    "model.mixer.name": "evil:X",
    "model.decoder_mixer.name": "evil:X",
    "model.feed_forward.name": "evil:X",
    "model.adapter.name": "evil:X",
    "model.pattern[0].mixer.name": [KIND | {"mixer": {"name": "evil:X"}}],
    "objective.name": "evil:X",
    "train.trackers[0]": ["evil:X"],
    "train.trackers": "evil:X",  # the wrong type, of which the rules ask for the right one
}
PAGE = """
from pathlib import Path
from flaxformer_lite.config import to_config_dict
from tests.training import tiny_runs

def get_config():
    return to_config_dict(tiny_runs.config(Path({folder!r}), train={{"steps": 1}}{parts}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps of a GPT-2."""
    folder = tmp_path_factory.mktemp("run")
    flaxformer_lite.run(tiny_runs.config(folder, train={"steps": 2}), folder / "run")
    return folder / "run"


@pytest.fixture
def here(run, tmp_path, monkeypatch):
    """The workdir as the current folder, in which a module evil.py lies that Python can import."""
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "evil.py").write_text(EVIL.format(str(tmp_path / "ran")))
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.syspath_prepend(tmp_path / "run")
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # verify sets these two
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    (tmp_path / "page.py").write_text(PAGE.format(folder=str(tmp_path), parts=""))
    (tmp_path / "pairs.jsonl").write_text('{"query": "a", "answer": "b"}\n')
    yield tmp_path / "run"
    sys.modules.pop("evil", None)


def plant(folder, field, value):
    """Names the module in a field of a workdir's config.json, with the hash that belongs to it."""
    path = folder / "config.json"
    inputs = json.loads(path.read_text())
    *above, last = re.sub(r"\[0\].*", "", field).split(".")
    node = inputs["config"]
    for part in above:
        node = node[part]
    if last == "name":
        node.clear()  # options of the plug-in that it had
    node[last] = value
    inputs["hash"] = fingerprint(inputs["config"])
    path.write_text(json.dumps(inputs))


def refusals(folder, read):
    """Returns a reader's message for each field, and checks that nothing was imported."""
    original = (folder / "config.json").read_bytes()
    messages = {}
    for field, value in FIELDS.items():
        plant(folder, field, value)
        messages[field] = read()
        assert "evil" not in sys.modules, field
        assert not (folder.parent / "ran").exists(), field
        (folder / "config.json").write_bytes(original)
    return messages


def check(messages):
    for field, message in messages.items():
        where = field.replace("trackers[0]", "trackers")
        assert f"config.json.{where}:" in message, message
        assert "'evil:X'" in message and "--allow-plugins" in message, message


TRAIN = ("--config=../page.py", "--config.data.tokenizer.path=")
TEACHER = ("--config.objective.name=distillation", "--config.objective.teacher=.")
COMMANDS = {
    "inspect": ["inspect", "."],
    "compare": ["compare", "."],
    "generate": ["generate", "--model=.", "--prompt=a"],
    "evaluate": ["evaluate", "--model=.", "--data=../text.jsonl"],
    "predict": ["predict", "--model=.", "--data=../text.jsonl"],
    "embed": ["embed", "--model=.", "--text=a"],
    "similar": ["similar", "--model=.", "--word=a"],
    "mine": ["mine", "--model=.", "--data=../pairs.jsonl", "--output=../mined.jsonl"],
    "look": ["look", "--model=.", "--text=a", "--output=../a.html"],
    "convert": ["convert", ".", "../out"],
    "export": ["export", "--model=.", "--output=../exported/model.onnx"],
    "convert --adapter": ["convert", "--adapter", ".", "../out"],
    "steps": ["steps", "--workdir=.", "--at=1"],
    "steps --run": ["steps", "--workdir=.", "--at=1", "--run"],
    "train": ["train", *TRAIN, "--workdir=../new", "--config.train.init_from=."],
    "data": ["data", "stats", *TRAIN, "--config.train.init_from=."],
    "plan": ["plan", *TRAIN, "--topology=v5e:1x1", "--config.train.init_from=."],
    "verify": ["verify", "--checks=mesh", *TRAIN, "--config.train.init_from=."],
    "train with a teacher": ["train", *TRAIN, "--workdir=../new", *TEACHER],
}


def test_every_command_is_here():
    by_the_harness = {"lm-eval"}  # an extra; it reads by load_pretrained
    others = set(door.COMMANDS) - by_the_harness
    assert {command[0] for command in COMMANDS.values()} == others


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_imports_what_a_workdir_names(name, here, capsys):
    def read():
        with pytest.raises(SystemExit) as end:
            door.main(COMMANDS[name])
        assert end.value.code == 2
        return capsys.readouterr().err

    check(refusals(here, read))


READERS = {
    "load_pretrained": load_pretrained,
    "open_pretrained": open_model.open_pretrained,
    "load_tokenizer": load_tokenizer,
    "load_labels": load_labels,
    "load_word_vectors": model_details.load_word_vectors,
    "template_of": model_details.template_of,
    "load_sentence_layers": model_details.load_sentence_layers,
    "open_trained": lambda path: evaluate_file.open_trained(Path(path)),
    "open_history": lambda path: batch_history.open_history(Path(path)),
    "before_step": lambda path: replay.before_step(Path(path), 1),
    "read_run": lambda path: workdir.read_run(Path(path)),
    "save_pretrained": lambda path: save_pretrained("../out", *weights("gpt2", None), like=path),
}


@pytest.mark.parametrize("name", READERS)
def test_no_function_imports_what_a_workdir_names(name, here):
    def read():
        with pytest.raises(ConfigError) as error:
            READERS[name](".")
        return str(error.value)

    check(refusals(here, read))


def test_a_continued_run_whose_workdir_a_stranger_changed(here, capsys):
    plant(here, "train.trackers[0]", ["evil:X"])
    plant(here, "train.init_from", "somewhere")
    with pytest.raises(SystemExit):
        door.main(["train", *TRAIN, "--workdir=.", "--config.train.init_from=somewhere"])
    assert "--allow-plugins" in capsys.readouterr().err
    assert "evil" not in sys.modules


def test_a_continued_run_whose_checkpoint_a_stranger_changed(here):
    cfg = workdir.read_config(here)
    stored = resume.meta(cfg, "", 2)
    stored["config"]["objective"] = {"name": "evil:X"}
    with pytest.raises(ConfigError, match=r"objective.name: evil:X -> causal_lm"):
        resume.check(stored, cfg, "")
    assert "evil" not in sys.modules


def test_published_weights_and_adapters_name_no_code(here, tmp_path, capsys):
    folder = models.directory(tmp_path / "gpt2")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "evil:X"}))
    for command in (["inspect", str(folder)], ["generate", f"--model={folder}", "--prompt=a"]):
        with contextlib.suppress(SystemExit):
            door.main(command)
        said = capsys.readouterr()
        assert "model_type='evil:X'" in said.out + said.err
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    described = {"peft_type": "evil:X", "auto_mapping": "evil:X"}
    (adapter / "adapter_config.json").write_text(json.dumps(described))
    (adapter / "adapter_model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    with pytest.raises(ConfigError):
        load_pretrained(models.directory(tmp_path / "plain"), adapter=adapter)
    assert "evil" not in sys.modules


@pytest.mark.parametrize("flags", [[], ["--allow-plugins"], ["--family=own_family:Mine"]])
def test_modules_of_the_current_folder_do_not_stand_in_for_missing_ones(
    flags, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p and Path(p) != tmp_path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (tmp_path / "not_installed.py").touch()
    with pytest.raises(SystemExit):
        door.main(["inspect", "nothing", *flags])
    assert str(tmp_path) not in sys.path
    assert importlib.util.find_spec("not_installed") is None


OWN = """
from dataclasses import dataclass
from flaxformer_lite.objectives.text.causal_lm import CausalLm

@dataclass(frozen=True, kw_only=True)
class Mine(CausalLm):
    pass
"""


@pytest.mark.nightly  # runs with plug-ins: tests/test_plugins.py
def test_a_persons_own_plugins_need_the_flag_only_where_no_page_names_them(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "own_objective.py").write_text(OWN)
    importlib.invalidate_caches()
    parts = ", objective=__import__('own_objective').Mine()"
    (tmp_path / "page.py").write_text(PAGE.format(folder=str(tmp_path), parts=parts))
    first = ["train", "--config=page.py", "--workdir=first"]
    door.main(first)
    door.main([*first, "--config.train.steps=2"])  # continues it
    door.main(["train", "--config=page.py", "--workdir=tuned", "--config.train.init_from=first"])
    capsys.readouterr()
    generate = ["generate", "--model=tuned", "--prompt=one", "--max_new_tokens=1"]
    with pytest.raises(SystemExit):
        door.main(generate)
    said = capsys.readouterr().err
    assert "objective.name: names the plug-in 'own_objective:Mine'" in said
    assert said.count("\n") == 1 and "add --allow-plugins" in said
    door.main([*generate, "--allow-plugins"])
    door.main(["convert", "tuned", "published", "--allow-plugins"])
    load_pretrained("tuned", allow_plugins=["own_objective:Mine"])
    with pytest.raises(ConfigError, match="allow_plugins=True"):
        load_pretrained("tuned", allow_plugins=["own_objective:Other"])
    sys.modules.pop("own_objective", None)


def test_the_base_of_an_adapter_is_read_without_its_runs_plugins(here):
    plant(here, "objective.name", "evil:X")
    plant(here, "train.init_from", "path/to/gpt2")
    assert save_model.base_of(str(here)) == "path/to/gpt2"
    assert "evil" not in sys.modules
