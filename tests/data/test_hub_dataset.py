"""Datasets on the Hugging Face Hub, against a stand-in on loopback."""

import io
import json
import re
import sys

import huggingface_hub.constants as constants
import pyarrow
import pyarrow.parquet
import pytest

from flaxformer_lite.__main__ import main
from flaxformer_lite.checkpoints.workdir import read_config
from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.data import hub_dataset
from flaxformer_lite.data.dataset import name_held_out, open_dataset, open_text
from flaxformer_lite.data.hub_dataset import fetch_split, list_splits
from flaxformer_lite.data.rows import open_table
from flaxformer_lite.storage.stores import StorageError
from tests import hub as stand_in
from tests.training import tiny_runs

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

NAME = "hf://datasets/org/topics"
TRAIN = ("train", "training")
HELD_OUT = ("validation", "dev", "eval", "test")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with stand_in.serve() as served:
        stand_in.use_stand_in(served, monkeypatch, tmp_path / "hub")
        monkeypatch.setenv("FLAXFORMER_LITE_CACHE", str(tmp_path / "own"))
        hub_dataset._open.cache_clear()
        yield served


def rows(count, word="row"):
    texts = [f"{word} {i} of many" for i in range(count)]
    return [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)]


def jsonl(count, word="row"):
    return "".join(f"{json.dumps(row)}\n" for row in rows(count, word)).encode()


def parquet(count, word="row"):
    """A table with names of classes in its schema, as `datasets` writes it."""
    classes = {"_type": "ClassLabel", "names": ["off", "on"]}
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": classes}
    values = [{**row, "label": number % 2} for number, row in enumerate(rows(count, word))]
    known = json.dumps({"info": {"features": features}})
    arrow = pyarrow.Table.from_pylist(values).replace_schema_metadata({"huggingface": known})
    file = io.BytesIO()
    pyarrow.parquet.write_table(arrow, file)
    return file.getvalue()


def csv(count, word="row"):
    lines = ["text,label", *(",".join(row.values()) for row in rows(count, word))]
    return "\n".join(lines).encode()


def card(configs):
    """A card of YAML, which JSON is."""
    return f"---\n{json.dumps({'configs': configs})}\n---\n# Topics\n".encode()


SHARDS = {
    "data/train-00000-of-00002.parquet": parquet(30),
    "data/train-00001-of-00002.parquet": parquet(20, "more"),
    "data/validation-00000-of-00001.parquet": parquet(8, "new"),
    "data/test-00000-of-00001.parquet": parquet(4, "last"),
    "README.md": b"# Topics",
}
SMALL = {
    "config_name": "small",
    "data_files": [
        {"split": "train", "path": "s/*.jsonl"},
        {"split": "validation", "path": ["held/**/*.jsonl"]},
        {"split": "hard", "path": "hard?.jsonl"},
    ],
}
ALL = {"config_name": "all", "default": True, "data_dir": "all"}
LISTED = {
    "README.md": card([SMALL, ALL, {"config_name": "one", "data_files": "one.csv"}]),
    "s/1.jsonl": jsonl(5),
    "s/deep/2.jsonl": jsonl(9),
    "held/a/b.jsonl": jsonl(3),
    "hard1.jsonl": jsonl(2),
    "all/train.csv": csv(7),
    "all/dev.csv": csv(6),
    "one.csv": csv(4),
}
FOLDERS = {
    "en/train/0000.parquet": parquet(5),
    "en/test/0000.parquet": parquet(2),
    "fr/train/0000.parquet": parquet(4),
    ".cache/train.parquet": parquet(1),
}


@pytest.mark.parametrize(
    ("files", "path", "wanted", "expected"),
    [
        (SHARDS, "", TRAIN, [f"data/train-0000{i}-of-00002.parquet" for i in range(2)]),
        (SHARDS, "/", HELD_OUT, ["data/validation-00000-of-00001.parquet"]),
        (SHARDS, "/test", TRAIN, ["data/test-00000-of-00001.parquet"]),
        (SHARDS, "/data/validation", TRAIN, ["data/validation-00000-of-00001.parquet"]),
        (SHARDS, "/data/test-00000-of-00001.parquet", TRAIN, ["data/test-00000-of-00001.parquet"]),
        (SHARDS, "@main/data/", HELD_OUT, ["data/validation-00000-of-00001.parquet"]),
        (LISTED, "", TRAIN, ["all/train.csv"]),
        (LISTED, "/dev", TRAIN, None),
        (LISTED, "", HELD_OUT, ["all/dev.csv"]),
        (LISTED, "/small", TRAIN, ["s/1.jsonl"]),
        (LISTED, "/small", HELD_OUT, ["held/a/b.jsonl"]),
        (LISTED, "/small/hard", HELD_OUT, ["hard1.jsonl"]),
        (LISTED, "/one", TRAIN, ["one.csv"]),
        (LISTED, "/s", TRAIN, ["s/1.jsonl", "s/deep/2.jsonl"]),
        (LISTED, "/s", HELD_OUT, ["s/1.jsonl", "s/deep/2.jsonl"]),
        (FOLDERS, "/en", TRAIN, ["en/train/0000.parquet"]),
        (FOLDERS, "/en/test", TRAIN, ["en/test/0000.parquet"]),
        (FOLDERS, "@refs/convert/parquet/fr", TRAIN, ["fr/train/0000.parquet"]),
        ({"a.csv": b"1", "b.csv": b"2", "c.tsv": b"3"}, "", TRAIN, ["a.csv", "b.csv"]),
        ({"x/a.jsonl": b"1", "y/b.jsonl": b"2"}, "", TRAIN, ["x/a.jsonl", "y/b.jsonl"]),
        ({"a b+c.csv.gz": b"1"}, "/a b+c.csv.gz", TRAIN, ["a b+c.csv.gz"]),
    ],
)
def test_files_of_a_split(hub, files, path, wanted, expected):
    hub.models["datasets/org/topics"] = files
    if expected is None:
        with pytest.raises(StorageError, match="has no config, split, folder or file dev"):
            fetch_split(f"{NAME}{path}", wanted)
        return
    found = fetch_split(f"{NAME}{path}", wanted)
    assert [str(file).partition(f"/{stand_in.SHA}/")[2] for file in found] == expected
    assert [file.read_bytes() for file in found] == [files[name] for name in expected]
    read = {name.rpartition("/")[2] for name in expected}
    assert hub.downloaded() - {"README.md"} == read


def test_an_address_that_names_a_split_holds_no_others(hub):
    hub.models["datasets/org/topics"] = SHARDS
    assert set(list_splits(NAME)) == {"train", "validation", "test"}
    assert list_splits(f"{NAME}/train") == list_splits(f"{NAME}/README.md") == ()


def test_shards_are_one_table_with_the_names_of_its_classes(hub):
    hub.models["datasets/org/topics"] = SHARDS
    read = open_table(NAME, f"data.path={NAME!r}")
    assert len(read) == 50 and read.rows[49]["text"] == "more 19 of many"
    assert read.names == {"label": ("off", "on")}
    bad = dict(SHARDS, **{"data/train-00001-of-00002.parquet": b"PAR1"})
    hub.models["datasets/org/bad"] = bad
    with pytest.raises(ConfigError, match=r"org/bad': train-00001-of-00002\.parquet"):
        open_table("hf://datasets/org/bad", "data.path='hf://datasets/org/bad'")


def test_the_config_of_a_run_names_the_held_out_split(hub, experiment):
    hub.models["datasets/org/topics"] = {"train.jsonl": jsonl(40), "test.jsonl": jsonl(9, "new")}
    cfg = experiment(path=f"{NAME}/")
    held = name_held_out(cfg)
    assert held.data.eval_path == f"{NAME}/test"
    assert name_held_out(held) is held
    data = open_dataset(cfg)
    assert len(data.sources[""].corpus.tokens["train"].offsets) == 41
    assert len(data.sources[""].corpus.tokens["eval"].offsets) == 10
    whole = experiment(path=f"{NAME}/train")
    assert name_held_out(whole) is whole
    both = f"{NAME}/train, {NAME}/test"
    assert len(open_dataset(experiment(path=both)).sources[""].corpus.source.files) == 2
    assert len(open_table(both, f"data.path={both!r}")) == 49


def test_text_that_is_evaluated_is_the_held_out_split(hub, experiment):
    hub.models["datasets/org/topics"] = {"train.jsonl": jsonl(40), "test.jsonl": jsonl(9, "new")}
    corpus = open_text(experiment(path=""), NAME).sources[""].corpus
    assert [file.name for file in corpus.source.files] == ["test.jsonl"]


def test_commands_read_rows_and_text(hub, tmp_path, capsys):
    hub.models["datasets/org/topics"] = SHARDS
    fields = {f"model.{name}": size for name, size in tiny_runs.SIZES.items()}
    fields |= {"train.steps": 1, "train.batch_size": 8, "train.eval_every": 1, "data.length": 16}
    fields |= {"train.eval_batches": 1, "train.sample_tokens": 0}
    fields |= {"data.tokenizer.name": "bytes", "data.cache": tmp_path / "cache", "data.path": NAME}
    small = [f"--config.{name}={value}" for name, value in fields.items()]
    workdir = tmp_path / "classify"
    layers = "--config.model.encoder_layers=1"
    main(["train", "--config=classify", *small, layers, f"--workdir={workdir}"])
    assert read_config(workdir).data.eval_path == f"{NAME}/validation"
    assert "off, on" in capsys.readouterr().out
    main(["evaluate", "--model", str(workdir), "--data", f"{NAME}/test"])
    assert f"{NAME}/test: 4 examples" in capsys.readouterr().out
    header = (workdir / "README.md").read_text().split("---")[1]
    assert "datasets:\n- org/topics\n" in header
    main(["data", "stats", "--config=gpt2_tiny", *small])
    assert f"50 to train on, 8 of {NAME}/validation held out" in capsys.readouterr().out


def test_a_source_of_a_mixture_is_a_dataset(hub, experiment):
    hub.models["datasets/org/topics"] = {"train.jsonl": jsonl(40), "README.md": b""}

    def mixed(path):
        sources = {"own": SourceConfig(path=f"{NAME}/train"), "other": SourceConfig(path=path)}
        return experiment(path="", mixture=sources)

    assert len(open_dataset(mixed(NAME)).sources["other"].corpus.source.files) == 1
    with pytest.raises(ConfigError, match=r"^data\.mixture\.other\.path: hf://.*fr: has no config"):
        open_dataset(mixed(f"{NAME}/fr"))


NONE = "no config, split, folder or file fr; name one of data/test, data/train,"
TEST = r"no split train or training, only test; name one, .*test/test\."
OTHER = "data on the hub is hf://datasets/ORG/NAME"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://datasets/org/none", "no such dataset on http.*, or it is private.*hf auth login"),
        ("hf://datasets/org/gated", "is gated; accept its terms on http.*/datasets/org/gated"),
        ("hf://datasets/org/terms", "is gated; accept its terms on http.*/datasets/org/terms"),
        (f"{NAME}@v9", "has no branch, tag or commit v9; http.*/datasets/org/topics/tree/main"),
        (f"{NAME}/fr", NONE),
        ("hf://datasets/org/folders", "several configs; name one of en, fr, as in .*folders/en"),
        ("hf://datasets/org/test", TEST),
        ("hf://datasets/org/zip", r"in no .parquet, .*\(.zip\).*org/zip@refs/convert/parquet"),
        ("hf://datasets/org/json", r"data are in no .*, .json, .md\); the Hub's own copy"),
        ("hf://datasets/topics", OTHER),
        ("hf://org/topics", OTHER),
        (f"{NAME}/../other", OTHER),
        (f"{NAME}?token=hf_secret", OTHER),
    ],
)
@pytest.mark.parametrize("page", ["classify", "gpt2_tiny"])
def test_what_cannot_be_read_is_one_sentence(hub, tmp_path, capsys, page, address, message):
    other = {"README.md": card([{"data_files": "*.json"}]), "a.json": b"[]", "b.csv": csv(1)}
    hub.models |= {
        "datasets/org/topics": SHARDS,
        "datasets/org/terms": SHARDS,
        "datasets/org/folders": FOLDERS,
        "datasets/org/test": {"test.csv": csv(3)},
        "datasets/org/zip": {"train.zip": b"PK"},
        "datasets/org/json": other,
    }
    workdir = tmp_path / "run"
    with pytest.raises(SystemExit):
        main(["train", f"--config={page}", f"--workdir={workdir}", f"--config.data.path={address}"])
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(f"data.path.*{message}", error), error
    assert "hf_secret" not in error
    assert not (workdir / "config.json").exists()
    assert hub.downloaded() <= {"README.md"}


def test_the_cache_is_read_where_there_is_no_network(hub, monkeypatch, caplog):
    hub.models["datasets/org/topics"] = SHARDS
    fetch_split(NAME, HELD_OUT)
    hub_dataset._open.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_split(NAME, HELD_OUT)[0].read_bytes() == parquet(8, "new")
    assert not caplog.messages
    # Half of the dataset is never taken for all of it.
    with pytest.raises(StorageError, match=r"is not in .*download the dataset"):
        fetch_split(NAME, TRAIN)
    with pytest.raises(StorageError, match=r"is not in .*download the dataset"):
        fetch_split("hf://datasets/org/other", TRAIN)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    hub_dataset._open.cache_clear()
    assert set(list_splits(NAME)) == {"train", "validation", "test"}
    assert caplog.text.count("cannot be reached; read from its cache") == 1
    with pytest.raises(StorageError, match=r"cannot be reached .* pass a folder"):
        fetch_split(NAME, TRAIN)


def test_without_huggingface_hub_the_extra_is_named(monkeypatch, tmp_path):
    """And nothing else needs it."""
    hub_dataset._open.cache_clear()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    (tmp_path / "rows.csv").write_bytes(csv(2))
    assert len(open_table(str(tmp_path / "rows.csv"), "data.path")) == 2
    with pytest.raises(StorageError, match=r"pip install 'flaxformer_lite\[hub\]'"):
        fetch_split(NAME, TRAIN)


def test_a_card_that_is_no_yaml_is_left_out(hub, caplog):
    broken = {"README.md": b"---\nconfigs: [\n---\n", "train.csv": csv(3)}
    hub.models["datasets/org/topics"] = broken
    assert fetch_split(NAME, TRAIN)[0].read_bytes() == csv(3)
    assert "its header cannot be read" in caplog.text


@pytest.mark.parametrize("value", ["hf://datasets/org/topics", "hf://org/model"])
def test_a_config_of_another_place_names_no_dataset(value):
    with pytest.raises(ConfigError, match="only gs:// and s3://"):
        DataConfig(cache=value)


def test_a_pattern_may_hold_a_set_of_letters():
    compiled = hub_dataset._compile_pattern("data/train-[0-9]*.csv")
    assert compiled.fullmatch("data/train-00.csv") and not compiled.fullmatch("data/train-a.csv")
    assert hub_dataset._compile_pattern("[!a].csv").fullmatch("b.csv")
