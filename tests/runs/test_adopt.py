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
    sizes = {"vocab_size": 448, "d_model": 16, "num_heads": 2, "num_kv_heads": 1, "mlp_dim": 24}
    model = built(llama.config("tiny", decoder_layers=2, **sizes))
    save_pretrained(folder, *model, like=models.directory(folder.parent / "gpt2"))
    return folder


def page(folder, init_from, module=gpt2_small, **fields):
    """A page as the command line hands it over."""
    config = module.get_config()
    data = {"data.path": str(tiny_runs.text(folder)), "data.cache": str(folder / "cache")}
    given = {"data.length": 32, "train.init_from": str(init_from), **data, **fields}
    config.update_from_flattened_dict(given)
    return config


def test_the_directory_is_the_model_and_the_page_says_how_it_is_run(published, tmp_path):
    cfg = read_experiment(page(tmp_path, published, **{"model.scan": True}))
    own = {"scan": True, "dtype": "bfloat16", "dropout": 0.0, "init": "normal_residual"}
    own["dropout_at"] = page(tmp_path, published).model.dropout_at
    assert cfg.model == dataclasses.replace(load_pretrained(published)[0].cfg, **own)
    assert cfg.data.tokenizer.path == str(published) and cfg.data.length == 32


SMALL = {"train.batch_size": 8, "train.accumulate": 1, "model.dtype": "float32"}
SMALL |= {"data.eval_fraction": 0.1}


def begins_with(published, folder, address):
    """Checks that a run whose page names the address begins with the published weights."""
    cfg = read_experiment(page(folder, address, **SMALL))
    assert cfg.data.tokenizer.path == str(address)
    experiment = prepare_experiment(dataclasses.replace(cfg, mesh=MeshConfig(data=1)))
    params = initial_state(experiment.program, cfg.train.init_from).params
    jax.tree.map(np.testing.assert_array_equal, params, load_pretrained(published)[1])
    rows = dict(text.banner(experiment, folder / "run", 0))
    taken = f"{address}: model, weights and tokenizer, in place of the config's"
    assert rows["taken from"] == taken and rows["model"].startswith("llama: 2 layers")


def test_a_run_begins_where_the_page_is_of_another_family(published, tmp_path):
    begins_with(published, tmp_path, published)


def test_a_run_begins_with_weights_of_a_store(published, tmp_path, gcs, monkeypatch):
    monkeypatch.setenv("FLAXFORMER_LITE_CACHE", str(tmp_path / "fetched"))
    for path in published.iterdir():
        remote.upload(path, f"{gcs.url}/llama/{path.name}")
    begins_with(published, tmp_path, f"{gcs.url}/llama")
    with pytest.raises(ConfigError, match=r"^train.init_from: gs://bucket/nothing:.*no object"):
        read_experiment(page(tmp_path, f"{gcs.url}/nothing", **SMALL))


def test_the_command_line_may_repeat_the_weights_sizes_and_change_how_they_are_run(
    published, tmp_path
):
    given = {"model.d_model": 16, "model.head_dim": 8, "model.dropout": 0.25}
    given |= {"model.max_length": 64}
    cfg = read_experiment(page(tmp_path, published, **given), given=list(given))
    assert (cfg.model.dropout, cfg.model.max_length, cfg.model.head_width) == (0.25, 64, 8)


def test_all_that_the_command_line_gets_wrong_is_said_at_once(published, tmp_path):
    given = {"model.d_model": 32, "model.num_heads": 4, "model.norm": "layer"}
    given |= {"model.position.name": "rope"}  # as it is
    with pytest.raises(ConfigError, match=r"d_model=32, where its weights have 16") as caught:
        read_experiment(page(tmp_path, published, **given), given=list(given))
    said = str(caught.value)
    assert "model.num_heads=4, where" in said and "model.norm=layer, where" in said
    pasted = said.split("or set ")[1].rstrip(".").split()
    due = {"d_model": 16, "num_heads": 2, "norm": "rms"}
    assert pasted == [f"--config.model.{name}={value}" for name, value in due.items()]


def test_another_tokenizer_stays_and_none_is_an_error(published, tmp_path):
    config = page(tmp_path, published, **{"data.tokenizer.path": "mine.json"})
    assert read_experiment(config).data.tokenizer.path == "mine.json"
    bare = shutil.copytree(published, tmp_path / "bare", ignore=shutil.ignore_patterns("tok*"))
    said = r"train.init_from: .*no tokenizer; .*Or name one: --config.data.tokenizer.path"
    with pytest.raises(ConfigError, match=said):
        read_experiment(page(tmp_path, bare))


def test_the_head_is_the_objectives(tmp_path):
    bert = models.directory(tmp_path / "bert", "bert", "masked_lm")

    def read(**fields):
        return read_experiment(page(tmp_path, bert, bert_tiny, **fields))

    assert read(**{"objective.pairs": "none"}).model.head == "masked_lm"
    message = r"trains the head 'pretraining': .*no tensor.*objective.pairs=none trains"
    with pytest.raises(ConfigError, match=message):
        read(**{"objective.pairs": "next_sentence"})
    with pytest.raises(ConfigError, match=r"skeleton.*objective.name=causal_lm"):
        read_experiment(page(tmp_path, bert))


def test_examples_longer_than_the_weights_positions(tmp_path):
    folder = models.directory(tmp_path / "gpt2")
    said = r"model.max_length=64: learned positions end there; set data.length=64\.$"
    with pytest.raises(ConfigError, match=said):
        read_experiment(page(tmp_path, folder, **{"data.length": 96}))


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
