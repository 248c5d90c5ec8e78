"""Published directories in a store: read as on a disk, copied once, and written so that half of one
is no model."""

import re

import jax
import numpy as np
import pytest

from flaxformer_lite import (
    ConfigError,
    load_labels,
    load_pretrained,
    load_tokenizer,
    save_adapter,
    save_pretrained,
)
from flaxformer_lite.__main__ import main
from flaxformer_lite.checkpoints import resolve_path
from flaxformer_lite.model_details import published_settings
from flaxformer_lite.pretrained.sentences import read_sentence_layers
from flaxformer_lite.storage import remote
from flaxformer_lite.storage.stores import StorageError
from tests import object_stores as storage
from tests.cli import models
from tests.pretrained.fixtures import ROOT


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLAXFORMER_LITE_CACHE", str(tmp_path / "cache"))


def sent(folder, url):
    for path in folder.rglob("*"):
        if path.is_file():
            remote.upload(path, f"{url.rstrip('/')}/{path.relative_to(folder)}")
    return url


def read(bucket, name):
    """The requests for the content of objects with this ending."""
    marks = ("alt=media", f"GET /{bucket.url[5:]}/")
    gets = [r for r in bucket.seen if r.startswith("GET") and any(mark in r for mark in marks)]
    return [request for request in gets if request.partition("?")[0].endswith(name)]


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)
    return True


def test_shards_tokenizer_labels_and_settings_are_those_of_the_disk(bucket, tmp_path):
    folder = models.directory(tmp_path / "gpt2")
    shards = sent(ROOT / "qwen2_lm", f"{bucket.url}/qwen2/")
    model, params = load_pretrained(shards)
    due, held = load_pretrained(ROOT / "qwen2_lm")
    assert model.cfg == due.cfg and equal(params, held)
    assert model.source == shards
    url = sent(folder, f"{bucket.url}/gpt2")
    assert load_tokenizer(url).encode("zero one") == load_tokenizer(folder).encode("zero one")
    assert published_settings(url) == published_settings(folder)
    assert load_labels(url) == load_labels(folder)
    labels = sent(ROOT / "bert_sequence_classification", f"{bucket.url}/bert")
    assert load_labels(labels) == load_labels(ROOT / "bert_sequence_classification")


def test_only_what_is_read_is_copied_and_only_once(bucket, tmp_path):
    url = sent(models.directory(tmp_path / "gpt2"), f"{bucket.url}/once")
    others = ("flax_model.msgpack", "pytorch_model.bin", "onnx/model.onnx", "a.png")
    for name in (*others, "checkpoint-9/model.safetensors"):
        storage.write(f"{url}/{name}", b"not read")
    bucket.seen.clear()
    load_tokenizer(url)
    assert not read(bucket, "safetensors")
    _, before = load_pretrained(url)
    assert len(read(bucket, "model.safetensors")) == 1
    assert not read(bucket, others)
    bucket.seen.clear()
    assert equal(load_pretrained(url)[1], before)
    # but is asked for changes
    assert bucket.seen and not read(bucket, ("safetensors", "tokenizer.json"))
    for name in ("config.json", "model.safetensors"):
        remote.upload(ROOT / "gpt2_lm" / name, f"{url}/{name}")
    assert equal(load_pretrained(url)[1], load_pretrained(ROOT / "gpt2_lm")[1])


def test_what_has_no_model_says_so(bucket):
    with pytest.raises(StorageError, match=r"/nothing:.*no object"):
        load_pretrained(f"{bucket.url}/nothing")
    storage.write(f"{bucket.url}/pickle/config.json", b"{}")
    storage.write(f"{bucket.url}/pickle/pytorch_model.bin", b"")
    with pytest.raises(StorageError, match=r"pickle/pytorch_model.bin:.*pickle.* not read here"):
        load_pretrained(f"{bucket.url}/pickle")


def test_a_model_goes_out_and_comes_back(bucket, tmp_path):
    folder = models.directory(tmp_path / "gpt2")
    model, params = load_pretrained(folder)
    url = f"{bucket.url}/out"
    save_pretrained(url, model, params, shard_bytes=9_000)
    names = {str(file).removeprefix(f"{url}/") for file in remote.find_below(url)}
    assert {"config.json", "model.safetensors.index.json", "tokenizer.json"} < names
    assert len(names) > 6
    assert equal(load_pretrained(url)[1], params)
    storage.write(f"{url}/README.md", b"mine")
    writes = len(bucket.seen)
    save_pretrained(url, load_pretrained(url)[0], params)  # its tokenizer comes from where it lies
    names = {str(file).removeprefix(f"{url}/") for file in remote.find_below(url)}
    assert "model.safetensors" in names
    assert "README.md" in names
    assert not [n for n in names if "-of-" in n or "index" in n]
    assert load_tokenizer(url).encode("zero one") == load_tokenizer(folder).encode("zero one")
    changes = [r.partition("?")[0] for r in bucket.seen[writes:] if r.startswith(("PUT", "DELETE"))]
    if bucket.url.startswith("s3"):
        assert changes[-1] == "PUT /bucket/out/config.json"
        assert changes[0].startswith("DELETE") or "DELETE /bucket/out/config.json" in changes


def test_a_kill_while_a_model_is_replaced_leaves_none_and_the_next_try_succeeds(
    gcs, tmp_path, monkeypatch
):
    model, params = load_pretrained(models.directory(tmp_path / "gpt2"))
    url = f"{gcs.url}/killed"
    upload = remote.upload
    save_pretrained(url, model, params)

    def killed(path, to):
        if to.endswith("config.json") and not to.endswith("generation_config.json"):
            raise KeyboardInterrupt
        upload(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(remote, "upload", killed)
        with pytest.raises(KeyboardInterrupt):
            save_pretrained(url, model, jax.tree.map(lambda x: x + 1, params))
    with pytest.raises(StorageError, match=rf"{url}: no config.json; was writing it interrupted"):
        load_pretrained(url)
    save_pretrained(url, model, params)
    assert equal(load_pretrained(url)[1], params)


def test_other_peoples_places_are_not_taken(gcs, tmp_path):
    model, params = load_pretrained(models.directory(tmp_path / "gpt2"))
    storage.write(f"{gcs.url}/photos/a.png", b"")
    storage.write(f"{gcs.url}/run/checkpoints/8/x", b"")
    for name, said in (
        ("photos", r"photos: holds a.png and no config.json"),
        ("run", r"run: is a training workdir"),
    ):
        with pytest.raises(ConfigError, match=said):
            save_pretrained(f"{gcs.url}/{name}", model, params)
    adapter = load_pretrained(ROOT / "gpt2_lm", adapter=ROOT / "adapters" / "gpt2_lm")
    with pytest.raises(ConfigError, match=r"photos: exists without a config.json .*and is"):
        save_adapter(f"{gcs.url}/photos", *adapter)


def test_convert_reads_and_writes_addresses(gcs, tmp_path, capsys):
    folder = models.directory(tmp_path / "gpt2")
    url = f"{gcs.url}/con [v]e?r#t%20é*d"
    main(["convert", str(folder), url])
    said = capsys.readouterr()
    assert said.out.startswith(f"{url}: gpt2, head lm, ") and f"sending {url}: " in said.err
    main(["convert", url, str(tmp_path / "back")])
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "back" / name).read_bytes() == remote.read(remote.find(f"{url}/{name}"))
    with pytest.raises(SystemExit):
        main(["convert", str(folder), url])
    assert f"error: {url}: exists and is not overwritten" in capsys.readouterr().err
    main(["inspect", url])
    assert "gpt2" in capsys.readouterr().out
    main(["generate", "--model", url, "--prompt", "zero one", "--max-new-tokens", "2"])
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["fetched"]


def test_what_a_killed_conversion_leaves_on_the_disk_goes_with_the_next_to_the_same_address(
    gcs, tmp_path
):
    with resolve_path.new_place(f"{gcs.url}/again") as made:
        left = made.with_name(re.sub("[0-9a-f]{16}.tmp$", f"{'0' * 16}.tmp", made.name))
    left.mkdir()
    with resolve_path.new_place(f"{gcs.url}/again") as made:
        assert not left.exists() and made.is_dir()
        with (
            pytest.raises(ConfigError, match="another process is writing it"),
            resolve_path.new_place(f"{gcs.url}/again"),
        ):
            pass
        (made / "config.json").write_text("{}")


def test_a_sentence_encoder_brings_its_layers(gcs):
    folders = (ROOT / "sentences").iterdir()
    folder = next(path for path in folders if (path / "modules.json").exists())
    url = sent(folder, f"{gcs.url}/sentences")
    here = read_sentence_layers(folder)
    there = read_sentence_layers(resolve_path.fetch_model(url, weights=False))
    assert len(there.dense) == len(here.dense)
    assert there._replace(dense=()) == here._replace(dense=())


def test_addresses_are_as_long_as_a_store_allows_and_do_not_meet_on_the_disk(gcs):
    long = f"{gcs.url}/{'a_long_folder/' * 40}model"
    with (
        resolve_path.new_place(long) as made,
        resolve_path.new_place(f"{gcs.url}/a/b"),
        resolve_path.new_place(f"{gcs.url}/a-b"),
    ):
        (made / "config.json").write_text("{}")
    assert remote.find(f"{long}/config.json")
