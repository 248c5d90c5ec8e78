"""A run whose model is that of the directory it begins with: what the page says, what the command
line may, what is resumed."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import flaxformer_lite
from configs import bert_tiny, gpt2_small
from flaxformer_lite import load_pretrained, save_pretrained
from flaxformer_lite.config import ConfigError, MeshConfig, to_config_dict
from flaxformer_lite.models import llama
from flaxformer_lite.runs.report import text
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.runs.start.setup import prepare_experiment
from flaxformer_lite.storage import remote
from flaxformer_lite.text.tokenizer import load
from tests.cli import models
from tests.models.tiny import built
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A Llama of two layers with a tokenizer."""
    folder = tmp_path_factory.mktemp("llama") / "published"
    cfg = llama.config(
        "tiny",
        vocab_size=448,
        d_model=16,
        num_heads=2,
        num_kv_heads=1,
        mlp_dim=24,
        decoder_layers=2,
    )
    save_pretrained(folder, *built(cfg), like=models.directory(folder.parent / "gpt2"))
    return folder


def page(folder, module=gpt2_small, **fields):
    """A page as the command line hands it over."""
    config = module.get_config()
    given = {
        "data.path": str(tiny_runs.text(folder)),
        "data.cache": str(folder / "cache"),
        "data.length": 32,
        **fields,
    }
    config.update_from_flattened_dict(given)
    return config


def test_the_directory_is_the_model_and_the_page_says_how_it_is_run(published, tmp_path):
    cfg = read_experiment(page(tmp_path, **{"train.init_from": str(published), "model.scan": True}))
    due = load_pretrained(published)[0].cfg
    assert cfg.model == dataclasses.replace(
        due, scan=True, dtype="bfloat16", dropout=0.0, init="normal_residual"
    )
    assert cfg.data.tokenizer.path == str(published) and cfg.data.length == 32


def test_a_run_begins_where_the_page_is_of_another_family(published, tmp_path):
    small = {
        "train.batch_size": 8,
        "train.accumulate": 1,
        "model.dtype": "float32",
        "data.eval_fraction": 0.1,
    }
    cfg = read_experiment(page(tmp_path, **small, **{"train.init_from": str(published)}))
    experiment = prepare_experiment(dataclasses.replace(cfg, mesh=MeshConfig(data=1)))
    params = initial_state(experiment.program, cfg.train.init_from).params
    jax.tree.map(np.testing.assert_array_equal, params, load_pretrained(published)[1])
    rows = dict(text.banner(experiment, tmp_path / "run", 0))
    assert (
        rows["taken from"] == f"{published}: model, weights and tokenizer, in place of the config's"
    )
    assert rows["model"].startswith("llama: 2 layers")


def test_a_run_begins_with_weights_of_a_store(published, tmp_path, gcs, monkeypatch):
    monkeypatch.setenv("FLAXFORMER_LITE_CACHE", str(tmp_path / "fetched"))
    url = f"{gcs.url}/llama"
    for path in published.iterdir():
        remote.upload(path, f"{url}/{path.name}")
    small = {
        "train.batch_size": 8,
        "train.accumulate": 1,
        "model.dtype": "float32",
        "data.eval_fraction": 0.1,
    }
    shared = small | {"train.init_from": url}
    cfg = read_experiment(page(tmp_path, **shared))
    assert cfg.data.tokenizer.path == url
    experiment = prepare_experiment(dataclasses.replace(cfg, mesh=MeshConfig(data=1)))
    params = initial_state(experiment.program, cfg.train.init_from).params
    jax.tree.map(np.testing.assert_array_equal, params, load_pretrained(published)[1])
    rows = dict(text.banner(experiment, tmp_path / "run", 0))
    assert rows["taken from"] == f"{url}: model, weights and tokenizer, in place of the config's"
    with pytest.raises(
        ConfigError,
        match=r"^train.init_from: gs://bucket/nothing:.*no object",
    ):
        read_experiment(page(tmp_path, **shared | {"train.init_from": f"{gcs.url}/nothing"}))


def test_the_command_line_may_repeat_the_weights_sizes_and_change_how_they_are_run(
    published, tmp_path
):
    given = {
        "model.d_model": 16,
        "model.head_dim": 8,
        "model.dropout": 0.25,
        "model.max_length": 64,
    }
    config = page(tmp_path, **given, **{"train.init_from": str(published)})
    cfg = read_experiment(config, given=list(given))
    assert (cfg.model.dropout, cfg.model.max_length, cfg.model.head_width) == (0.25, 64, 8)


def test_all_that_the_command_line_gets_wrong_is_said_at_once(published, tmp_path):
    given = {
        "model.d_model": 32,
        "model.num_heads": 4,
        "model.position.name": "rope",
        "model.norm": "layer",
    }
    config = page(tmp_path, **given, **{"train.init_from": str(published)})
    with pytest.raises(ConfigError) as caught:
        read_experiment(config, given=list(given))
    said = str(caught.value)
    for part in (
        "model.d_model=32, where its weights have 16",
        "model.num_heads=4, where",
        "model.norm=layer, where",
    ):
        assert part in said
    pasted = said.split("or set ")[1].rstrip(".").split()
    assert pasted == [
        "--config.model.d_model=16",
        "--config.model.num_heads=2",
        "--config.model.norm=rms",
    ]


def test_another_tokenizer_stays_and_none_is_an_error(published, tmp_path):
    config = page(
        tmp_path, **{"train.init_from": str(published), "data.tokenizer.path": "mine.json"}
    )
    assert read_experiment(config).data.tokenizer.path == "mine.json"
    bare = shutil.copytree(published, tmp_path / "bare", ignore=shutil.ignore_patterns("tok*"))
    with pytest.raises(
        ConfigError,
        match=r"train.init_from: .*no tokenizer; .*Or name one: --config.data.tokenizer.path",
    ):
        read_experiment(page(tmp_path, **{"train.init_from": str(bare)}))


def test_the_head_is_the_objectives(tmp_path):
    bert = models.directory(tmp_path / "bert", "bert", "masked_lm")
    fields = {"train.init_from": str(bert), "objective.pairs": "none"}
    assert read_experiment(page(tmp_path, bert_tiny, **fields)).model.head == "masked_lm"
    message = (
        "masked_lm as configured trains the head 'pretraining': .*no tensor.*objective.pairs=none"
        " trains"
    )
    with pytest.raises(ConfigError, match=message):
        read_experiment(page(tmp_path, bert_tiny, **fields | {"objective.pairs": "next_sentence"}))
    with pytest.raises(
        ConfigError,
        match=r"skeleton.*objective.name=causal_lm",
    ):
        read_experiment(page(tmp_path, **{"train.init_from": str(bert)}))


def test_examples_longer_than_the_weights_positions(tmp_path):
    folder = models.directory(tmp_path / "gpt2")
    with pytest.raises(
        ConfigError,
        match=r"model.max_length=64: learned positions end there; set data.length=64\.$",
    ):
        read_experiment(page(tmp_path, **{"train.init_from": str(folder), "data.length": 96}))


@pytest.mark.nightly  # of a directory, test_warm_start.py
def test_a_run_goes_on_without_the_directory_that_it_began_with(tmp_path):
    """The first is a workdir too: model, weights of its newest checkpoint, and tokenizer come from
    there."""
    first = tmp_path / "first"
    second = tmp_path / "second"
    cfg = tiny_runs.config(tmp_path, train={"steps": 4})
    flaxformer_lite.run(cfg, first)
    config = to_config_dict(tiny_runs.config(tmp_path, train={"steps": 4, "init_from": str(first)}))
    config.model.d_model = 32  # the page's, which the directory replaces
    config.model.decoder_layers = 3
    adopted = read_experiment(config, second)
    due = dataclasses.replace(cfg.model, vocab_size=adopted.model.vocab_size)
    assert adopted.model == due and adopted.data.tokenizer.path == str(first / "tokenizer")
    begun = initial_state(prepare_experiment(adopted).program, adopted.train.init_from)
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.device_get(begun.params),
        jax.device_get(load_pretrained(first)[1]),
    )
    flaxformer_lite.run(adopted, second)
    written = (second / "config.json").read_text()
    (second / "config.json").write_text(written.replace("d_model", "d_modem"))  # damaged
    assert read_experiment(config, second).model == due
    (second / "config.json").write_text(written)
    shutil.rmtree(first)
    config.train.steps = 6
    again = read_experiment(config, second)
    assert again.model == due
    assert load(again.data.tokenizer.path).fingerprint == load(second / "tokenizer").fingerprint
    assert flaxformer_lite.run(again, second).steps == 6
    assert (second / "checkpoints" / "6").is_dir()
