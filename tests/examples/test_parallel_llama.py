"""A family that no file of the package knows: loaded, saved, generated with, trained and
fine-tuned by its name."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import flaxformer_lite
from examples import parallel_llama as own
from flaxformer_lite import load_pretrained, load_tokenizer, save_pretrained, unstack_layers
from flaxformer_lite.__main__ import main
from flaxformer_lite.cli import command_line
from flaxformer_lite.config import ConfigError, ExperimentConfig, from_config_dict, to_config_dict
from flaxformer_lite.models import transformer
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.pretrained.hf_config import read_config
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.sharding import parameter_rules
from tests.pretrained.fixtures import ROOT
from tests.training import tiny_runs

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

FAMILY = "examples.parallel_llama:Model"
PAGE = """
from tests.training import tiny_runs
from examples import parallel_llama as own
from flaxformer_lite.config import to_config_dict
from pathlib import Path

def get_config():
    sizes = dict(vocab_size=0, d_model=16, num_heads=2, mlp_dim=32, decoder_layers=1, max_length=32)
    train = dict(steps=2, checkpoint_every=2)
    model = own.config("tiny", **sizes)
    return to_config_dict(tiny_runs.config(Path(__file__).parent, model=model, train=train))
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder of its weights."""
    sizes = {"vocab_size": 31, "d_model": 16, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
    cfg = own.config("tiny", **sizes, mlp_dim=24, decoder_layers=2)
    model = own.Model(dataclasses.replace(cfg, logit_multiplier=0.5))
    params = jax.jit(model.init)(jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    folder = tmp_path_factory.mktemp("own") / "published"
    save_pretrained(folder, model, params)
    return folder, model, params


def test_what_is_saved_is_loaded_and_its_layers_can_be_stacked(published):
    folder, model, params = published
    again, same = load_pretrained(folder, family=FAMILY)
    assert again.cfg == model.cfg
    jax.tree.map(np.testing.assert_array_equal, params, same)
    stacked = load_pretrained(folder, family=FAMILY, scan=True)[1]
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked), params)
    names = load_file(folder / "model.safetensors")
    assert "model.layers.1.shared_norm.weight" in names


def test_rules_cover_every_parameter():
    cfg = own.config("tiny")
    for path in parameter_shapes(own.Model(cfg)):
        assert any(re.search(rule, path) for rule, _ in parameter_rules.rules(cfg)), path


def test_what_reads_it_must_be_named_and_must_fit(published):
    folder = published[0]
    misspelt = "examples.parallel_llama:Modell"
    for path, family, message in (
        (folder, {}, r"model_type='parallel_llama'.*family=module:Model.*reads"),
        (
            ROOT / "gpt2_lm",
            {"family": FAMILY},
            f"model_type='gpt2', where family='{FAMILY}' reads 'parallel_llama'",
        ),
        (folder, {"family": misspelt}, f"^family='{misspelt}': .*did you mean 'Model'"),
        (folder, {"family": "examples.ordinal:Ordinal"}, "is not derived from .*FamilyModel"),
        (folder, {"family": f"{transformer.__name__}:Model"}, "its file needs PUBLISHED"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_pretrained(path, **family)
    config = json.loads((folder / "config.json").read_text()) | {"alibi_slope": 3}
    message = r"alibi_slope=3.*not supported.*parallel_llama.*numbers"
    with pytest.raises(ConfigError, match=message):
        read_config(own, config, "lm")


@pytest.mark.nightly
def test_train_convert_generate_and_fine_tune_by_the_command_line(tmp_path, capsys):
    (tmp_path / "page.py").write_text(PAGE)
    cfg = from_config_dict(ExperimentConfig, command_line.config([f"--config={tmp_path}/page.py"]))
    assert cfg.model.family == FAMILY
    flaxformer_lite.run(cfg, tmp_path / "run")
    main(["convert", str(tmp_path / "run"), str(tmp_path / "published"), "--allow-plugins"])
    model, params = load_pretrained(tmp_path / "run", allow_plugins=True)
    again, same = load_pretrained(tmp_path / "published", family=FAMILY)
    jax.tree.map(np.testing.assert_array_equal, params, same)
    assert again.cfg.family == model.cfg.family == FAMILY
    written = []
    ids = []
    for name, reads, flags in (
        ("run", {"allow_plugins": True}, ["--allow-plugins"]),
        ("published", {"family": FAMILY}, ["--family", FAMILY]),
    ):
        ids.append(load_tokenizer(tmp_path / name, **reads).encode("two"))
        capsys.readouterr()
        command = ["generate", "--model", f"{tmp_path}/{name}", *flags]
        main([*command, "--prompt", "zero one", "--max_new_tokens", "4"])
        written.append(capsys.readouterr().out)
    assert written[0] == written[1] and ids[0] == ids[1]
    main(["inspect", str(tmp_path / "published"), "--family", FAMILY])
    assert f"family       {FAMILY}" in capsys.readouterr().out
    train = {"steps": 1, "init_from": str(tmp_path / "published")}
    page = to_config_dict(tiny_runs.config(tmp_path, train=train))
    with pytest.raises(ConfigError, match="families with published weights are"):
        read_experiment(page)
    page.model.family = FAMILY
    tuned = read_experiment(page, given=["model.family"])
    assert tuned.model.family == FAMILY and tuned.model.residual == "parallel_shared"
    flaxformer_lite.run(tuned, tmp_path / "tuned")
    save_pretrained(tmp_path / "out", *load_pretrained(tmp_path / "tuned", allow_plugins=True))
    kept = json.loads((tmp_path / "out" / "config.json").read_text())
    assert kept["model_type"] == "parallel_llama"
