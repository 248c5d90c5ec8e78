"""Phi, a family that no file of the package knows: loaded, saved, generated with, trained and
fine-tuned by its name."""

import json

import jax
import numpy as np
import pytest

from examples import phi
from flaxformer_lite import (
    build_model,
    load_pretrained,
    load_tokenizer,
    save_pretrained,
    unstack_layers,
)
from flaxformer_lite.__main__ import main
from flaxformer_lite.cli import command_line
from flaxformer_lite.config import ConfigError, ExperimentConfig, from_config_dict, to_config_dict
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.pretrained.hf_config import read_config
from flaxformer_lite.runs import loop
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.sharding import parameter_rules
from tests.examples.saved import check_round_trip
from tests.marks import daily
from tests.pretrained.fixtures import MANIFEST, OUTSIDE, ROOT, errors, loaded
from tests.training import tiny_runs

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

FAMILY = OUTSIDE["phi"]
NAMES = [name for name in MANIFEST if name.startswith("phi")]
PAGE = """
from tests.training import tiny_runs
from examples import phi
from flaxformer_lite.config import to_config_dict
from pathlib import Path

def get_config():
    sizes = dict(vocab_size=0, d_model=16, num_heads=2, mlp_dim=32, decoder_layers=1, max_length=32)
    train = dict(steps=2, checkpoint_every=2)
    model = phi.config("tiny", **sizes)
    return to_config_dict(tiny_runs.config(Path(__file__).parent, model=model, train=train))
"""


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_are_torch_transformers(name):
    assert loaded(name)[0].cfg.family == FAMILY
    for what, error in errors(*loaded(name), name):
        assert error < 1e-5, what


@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name, tmp_path):
    check_round_trip(name, tmp_path)


def test_scanned_and_side_by_side_are_the_same_numbers():
    stacked = load_pretrained(ROOT / "phi_lm", family=FAMILY, scan=True)[1]
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked), loaded("phi_lm")[1])


# The fields of microsoft/phi-2's config.json that say what is computed; parameters counted by torch
# on its meta device.
PHI_2 = dict(
    model_type="phi",
    architectures=["PhiForCausalLM"],
    hidden_size=2560,
    intermediate_size=10240,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    partial_rotary_factor=0.4,
    rope_theta=10000.0,
    rope_scaling=None,
    qk_layernorm=False,
    hidden_act="gelu_new",
    layer_norm_eps=1e-5,
    max_position_embeddings=2048,
    vocab_size=51200,
    tie_word_embeddings=False,
    resid_pdrop=0.1,
    embd_pdrop=0.0,
    attention_dropout=0.0,
    use_cache=True,
)


@pytest.mark.parametrize(
    ("preset", "millions"), daily([("1", 1418.270720), ("2", 2779.683840)], [("1", 1418.270720)])
)
def test_presets_are_the_published_sizes(preset, millions):
    shapes = parameter_shapes(build_model(FAMILY, preset))
    assert sum(np.prod(leaf.shape) for leaf in shapes.values()) == pytest.approx(
        millions * 1e6, abs=0.5
    )


def test_the_published_config_is_the_preset():
    assert read_config(phi, PHI_2, "lm") == phi.config("2", num_kv_heads=32)


def test_rules_cover_every_parameter():
    cfg = phi.config("tiny")
    for path in parameter_shapes(phi.Model(cfg)):
        assert any(__import__("re").search(rule, path) for rule, _ in parameter_rules.rules(cfg)), (
            path
        )


def test_what_reads_it_must_be_named_and_must_fit():
    with pytest.raises(
        ConfigError, match=r"model_type='phi'.*family=module:Model reads by your own"
    ):
        load_pretrained(ROOT / "phi_lm")
    with pytest.raises(
        ConfigError, match=r"model_type='gpt2', where family='examples.phi:Model' reads 'phi'"
    ):
        load_pretrained(ROOT / "gpt2_lm", family=FAMILY)
    with pytest.raises(
        ConfigError, match=r"^family='examples.phi:Modell': .*has no 'Modell'; did you mean 'Model'"
    ):
        load_pretrained(ROOT / "phi_lm", family="examples.phi:Modell")
    with pytest.raises(ConfigError, match="its file needs PUBLISHED"):
        load_pretrained(ROOT / "phi_lm", family="examples.ordinal:Ordinal")


def test_a_field_that_its_file_does_not_name_is_refused(tmp_path):
    config = json.loads((ROOT / "phi_lm" / "config.json").read_text())
    with pytest.raises(
        ConfigError, match="alibi_slope=3 is not supported for phi and might change the numbers"
    ):
        read_config(phi, config | {"alibi_slope": 3}, "lm")


@pytest.mark.nightly
def test_train_convert_generate_and_fine_tune_by_the_command_line(tmp_path, capsys):
    (tmp_path / "page.py").write_text(PAGE)
    cfg = from_config_dict(ExperimentConfig, command_line.config([f"--config={tmp_path}/page.py"]))
    assert cfg.model.family == FAMILY
    loop.run(cfg, tmp_path / "run")
    main(["convert", str(tmp_path / "run"), str(tmp_path / "published"), "--allow-plugins"])
    model, params = load_pretrained(tmp_path / "run", allow_plugins=True)
    again, same = load_pretrained(tmp_path / "published", family=FAMILY)
    jax.tree.map(np.testing.assert_array_equal, params, same)
    assert again.cfg.family == model.cfg.family == FAMILY
    assert load_tokenizer(tmp_path / "published", family=FAMILY).encode("two") == load_tokenizer(
        tmp_path / "run", allow_plugins=True
    ).encode("two")
    capsys.readouterr()
    written = []
    for where in (
        ["--model", f"{tmp_path}/run", "--allow-plugins"],
        ["--model", f"{tmp_path}/published", "--family", FAMILY],
    ):
        main(["generate", *where, "--prompt", "zero one", "--max_new_tokens", "4"])
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]
    main(["inspect", str(tmp_path / "published"), "--family", FAMILY])
    assert f"family       {FAMILY}" in capsys.readouterr().out
    page = to_config_dict(
        tiny_runs.config(tmp_path, train={"steps": 1, "init_from": str(tmp_path / "published")})
    )
    with pytest.raises(ConfigError, match="families with published weights are"):
        read_experiment(page)
    page.model.family = FAMILY
    tuned = read_experiment(page, given=["model.family"])
    assert tuned.model.family == FAMILY and tuned.model.residual == "parallel_shared"
    loop.run(tuned, tmp_path / "tuned")
    save_pretrained(tmp_path / "out", *load_pretrained(tmp_path / "tuned", allow_plugins=True))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "phi"
