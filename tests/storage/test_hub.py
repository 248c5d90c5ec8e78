"""Models on the Hugging Face Hub, against a stand-in on loopback."""

import re
import shutil

import huggingface_hub.constants as constants
import pytest

from flaxformer_lite.__main__ import main
from flaxformer_lite.checkpoints import resolve_path, run_inputs
from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import hub_dataset
from flaxformer_lite.model_details import load_tokenizer
from flaxformer_lite.models import bert
from flaxformer_lite.open_model import load_pretrained
from flaxformer_lite.runs.report.model_card import CardSource, make_card
from flaxformer_lite.storage.hub import push
from flaxformer_lite.storage.stores import StorageError
from tests import hub as stand_in
from tests.cli import models
from tests.objectives.tables import write_rows
from tests.training import tiny_runs

NAME = "hf://org/tiny"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The stand-in, with an empty cache."""
    with stand_in.serve() as served:
        stand_in.use_stand_in(served, monkeypatch, tmp_path / "hub")
        resolve_path._from_hub.cache_clear()
        yield served


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return models.directory(tmp_path_factory.mktemp("published"), "gpt2")


def test_a_model_is_downloaded_without_what_is_not_read(hub, folder, tmp_path):
    source = shutil.copytree(folder, tmp_path / "source")
    for extra in ("pytorch_model.bin", "consolidated.safetensors", "flax_model.msgpack"):
        (source / extra).write_bytes(b"0")
    (source / "onnx").mkdir()
    (source / "onnx" / "config.json").write_text("{}")
    hub.add("org/tiny", source)
    load_tokenizer(NAME)
    assert "model.safetensors" not in hub.downloaded()
    model, _ = load_pretrained(NAME)
    assert (model.source, model.cfg.family) == (NAME, "gpt2")
    files = {path.name for path in folder.iterdir()}
    assert hub.downloaded() == files
    assert "Bearer hf_secret" in hub.tokens


def test_the_cache_is_read_where_there_is_no_network(hub, folder, monkeypatch, caplog):
    hub.add("org/tiny", folder)
    hub.models["org/tiny"]["pytorch_model.bin"] = b"0"  # is not downloaded, nor missed
    forbidden = pytest.raises(StorageError, match=r"is not in .*, and HF_HUB_OFFLINE forbids")
    load_tokenizer(NAME)
    with monkeypatch.context() as offline, forbidden:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        load_pretrained(NAME)  # the cache has its tokenizer alone
    load_pretrained(NAME)
    resolve_path._from_hub.cache_clear()
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        load_pretrained(NAME)
        assert not caplog.messages
        with forbidden:
            load_pretrained("hf://org/other")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    resolve_path._from_hub.cache_clear()
    load_pretrained(NAME)
    assert "cannot be reached; read from its cache" in caplog.text
    with pytest.raises(StorageError, match=r"cannot be reached .* pass a folder"):
        load_pretrained("hf://org/other")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://org/none", r"no such model.*private"),
        ("hf://org/gated", "is gated; accept its terms on http.*org/gated, and set HF_TOKEN"),
        (f"{NAME}@v9", "has no branch, tag or commit v9"),
        ("hf://tiny", "is hf://ORG/NAME, or hf://ORG/NAME@REVISION"),
        ("hf://org/old", "pytorch_model.bin: a pickle"),
        ("hf://org/data", "no config.json"),
        ("hf://org/a--b", "Cannot have -- or"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(hub, folder, address, message):
    hub.add("org/tiny", folder)
    hub.models["org/old"] = {"config.json": b"{}", "pytorch_model.bin": b"0"}
    hub.models["org/data"] = {"README.md": b""}
    with pytest.raises(ConfigError, match=message):
        load_pretrained(address)
    assert not hub.downloaded()


def test_a_file_that_is_no_json_is_named_with_its_copy(hub, folder, capsys):
    hub.add("org/tiny", folder)
    hub.models["org/tiny"]["config.json"] = b"<html>"
    with pytest.raises(SystemExit):
        main(["inspect", NAME])
    said = capsys.readouterr().err
    assert re.search(r"/models--org--tiny/\S+/config.json is not JSON", said)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"id": "org/tiny", "sha": "../../x", "siblings": []},
        {"id": "org/tiny", "sha": stand_in.SHA, "siblings": [{"rfilename": "../../x.csv"}]},
    ],
)
def test_an_answer_of_another_form_is_one_sentence(hub, answer):
    for place in ("models/org/tiny", "datasets/org/tiny"):
        hub.answers[f"GET /api/{place}"] = 200, answer
    for read in (load_tokenizer, lambda _: hub_dataset.list_splits("hf://datasets/org/tiny")):
        with pytest.raises(StorageError, match=r"does not answer as the hub does.*HF_ENDPOINT"):
            read(NAME)


def test_a_download_that_differs_from_its_digest_is_removed(hub, folder):
    hub.add("org/tiny", folder)
    hub.flipped.add("model.safetensors")
    with pytest.raises(StorageError, match=r"model.safetensors: .* another digest .*was removed"):
        load_pretrained(NAME)
    hub.flipped.clear()
    load_pretrained(NAME)


def test_a_cache_that_cannot_be_written_is_named(hub, folder, tmp_path, monkeypatch):
    hub.add("org/tiny", folder)
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    with pytest.raises(StorageError, match=r"file.* cannot be used .Not a directory.*HF_HOME"):
        load_pretrained(NAME)


def test_a_push_that_fails_leaves_no_copy(hub, tmp_path, monkeypatch):
    """Nor does one that was killed earlier."""
    monkeypatch.setenv("FLAXFORMER_LITE_CACHE", str(tmp_path / "cache"))
    killed = tmp_path / "cache" / ".push.0123456789abcdef.tmp"
    killed.mkdir(parents=True)
    hub.answers["POST /api/repos/create"] = 500, {}
    failed = pytest.raises(StorageError, match=r"answers with an error \(.*500.*nothing was pushed")
    with failed, resolve_path.new_place(NAME) as made:
        (made / "config.json").write_text("{}")
    hub.answers["POST /api/repos/create"] = 200, []
    with pytest.raises(StorageError, match="does not answer as the hub does"):
        push(made.parent, NAME)
    assert not list((tmp_path / "cache").iterdir())


def test_convert_pushes_a_model_with_its_card(hub, folder, capsys):
    hub.models["org/new"] = {"model-00001-of-00002.safetensors": b"0", "notes.txt": b"mine"}
    main(["convert", str(folder), "hf://org/new"])
    pushed = hub.models["org/new"]
    assert pushed["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert set(pushed) == {path.name for path in folder.iterdir()} | {"README.md", "notes.txt"}
    card = pushed["README.md"].decode()
    assert card.startswith("---\n# license:  # not stated")
    assert "A `gpt2` of " in card and "pipeline_tag: text-generation" in card
    assert "states no license" in capsys.readouterr().err
    hub.models["org/new"]["README.md"] = b"my own words"
    main(["convert", "hf://org/new", "hf://org/new"])
    assert pushed["README.md"] == b"my own words"
    with pytest.raises(SystemExit):
        main(["convert", str(folder), "hf://org/new@v2"])
    assert "leave out @v2" in capsys.readouterr().err


def test_an_adapter_replaces_no_weights(hub, tmp_path):
    hub.models["org/new"] = {"model.safetensors": b"base"}
    (tmp_path / "adapter_model.safetensors").write_bytes(b"0")
    push(tmp_path, "hf://org/new")
    assert set(hub.models["org/new"]) == {"model.safetensors", "adapter_model.safetensors"}


def test_the_card_of_a_run_has_its_data_metrics_and_config(tmp_path):
    """And the names of files alone, without folders."""
    cfg = tiny_runs.config(tmp_path, "gpt2", train={"init_from": "hf://org/tiny", "steps": 4})
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    run_inputs.write_inputs(tmp_path, cfg, models.tokenizer())
    rows = [{"step": step, "split": "eval", "perplexity": 9.0 - step} for step in (2, 4)]
    write_rows(tmp_path / "metrics.jsonl", rows)
    masked = make_card("hf://org/b", bert.config("tiny"), 1, CardSource())
    assert "pipeline_tag: fill-mask" in masked
    text = make_card("hf://org/new", cfg.model, 1234, CardSource(base="org/tiny", run=tmp_path))
    assert "base_model: org/tiny" in text and "# new\n" in text
    assert "A `gpt2` of 1,234 parameters" in text and "objective `causal_lm`" in text
    assert "| perplexity | 5.0" in text and "| started from | hf://org/tiny |" in text
    assert f"| steps | {cfg.train.steps} |" in text and "| d_model | " in text
    assert str(tmp_path) not in text


def test_names_on_a_card_are_no_markup():
    card = make_card('/x/<img src=x>|"a', bert.config("tiny"), 1, CardSource())
    assert '\n# &#60;img src=x&#62;&#124;"a\n' in card
    assert 'load_pretrained("<img src=x>|\\"a")' in card and card.count("<img") == 2  # in code
