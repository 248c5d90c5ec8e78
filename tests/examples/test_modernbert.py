"""ModernBERT, whose layers differ in window, base and norm, from one file outside the package."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from examples import modernbert
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
from flaxformer_lite.pretrained.hf_config import read_config, write_config
from flaxformer_lite.pretrained.save import published_tensors
from flaxformer_lite.runs import loop
from flaxformer_lite.sharding import parameter_rules
from tests.examples.saved import check_round_trip
from tests.marks import daily
from tests.pretrained.fixtures import MANIFEST, OUTSIDE, ROOT, errors, loaded, outputs, part

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

FAMILY = OUTSIDE["modernbert"]
NAMES = [name for name in MANIFEST if name.startswith("modernbert")]
PAGE = """
from pathlib import Path
from examples import modernbert
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.objectives.text.masked_lm import MaskedLm
from tests.training import tiny_runs

def get_config():
    sizes = dict(vocab_size=0, d_model=16, num_heads=2, mlp_dim=32, encoder_layers=2)
    model, train = modernbert.config("tiny", **sizes), dict(steps=2, checkpoint_every=2)
    return to_config_dict(
        tiny_runs.config(
            Path(__file__).parent, model=model, objective=MaskedLm(pairs="none"), train=train
        )
    )
"""
# config.json of answerdotai/ModernBERT-base, less what no family computes with.
BASE = dict(
    model_type="modernbert",
    architectures=["ModernBertForMaskedLM"],
    attention_bias=False,
    attention_dropout=0.0,
    classifier_activation="gelu",
    classifier_bias=False,
    classifier_dropout=0.0,
    classifier_pooling="mean",
    cls_token_id=50281,
    decoder_bias=True,
    deterministic_flash_attn=False,
    embedding_dropout=0.0,
    global_attn_every_n_layers=3,
    global_rope_theta=160000.0,
    hidden_activation="gelu",
    hidden_size=768,
    initializer_cutoff_factor=2.0,
    intermediate_size=1152,
    layer_norm_eps=1e-05,
    local_attention=128,
    local_rope_theta=10000.0,
    max_position_embeddings=8192,
    mlp_bias=False,
    mlp_dropout=0.0,
    norm_bias=False,
    norm_eps=1e-05,
    num_attention_heads=12,
    num_hidden_layers=22,
    pad_token_id=50283,
    position_embedding_type="absolute",
    reference_compile=None,
    repad_logits_with_grad=False,
    sep_token_id=50282,
    sparse_pred_ignore_index=-100,
    sparse_prediction=False,
    tie_word_embeddings=True,
    vocab_size=50368,
)


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_are_torch_transformers(name):
    for what, error in errors(*loaded(name), name):
        assert error < 1e-5, what


@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name, tmp_path):
    check_round_trip(name, tmp_path)


def test_gradients_are_torch_transformers():
    """Includes the fused tensors, each of which is several of our parameters."""
    model, params = loaded("modernbert_masked_lm")
    inputs = part("modernbert_masked_lm", "default/in/")
    labels = part("modernbert_masked_lm", "loss/")
    kept = labels["labels"] != -100

    def loss(params):
        logits = model.apply(
            {"params": params}, **{key: jnp.asarray(value) for key, value in inputs.items()}
        ).logits
        each = optax.softmax_cross_entropy_with_integer_labels(
            logits, jnp.where(kept, labels["labels"], 0)
        )
        return jnp.sum(jnp.where(kept, each, 0)) / float(kept.sum())

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    np.testing.assert_allclose(value, labels["loss"], rtol=1e-5)
    flat = {
        "/".join(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(grads)
    }
    ours = published_tensors(modernbert.PUBLISHED, model.cfg, flat)
    due = part("modernbert_masked_lm", "grads/")
    assert set(ours) == set(due)
    largest = max(np.abs(g).max() for g in due.values())
    for key, gradient in due.items():
        np.testing.assert_allclose(
            np.asarray(ours[key]), gradient, rtol=1e-4, atol=1e-5 * largest, err_msg=key
        )


def test_a_local_layer_sees_half_the_window_to_each_side_and_no_further():
    """With one local layer only, a token reaches exactly `local_attention / 2` neighbours."""
    kinds = modernbert.pattern([modernbert.LOCAL // 2 + 1], modernbert.Rope())
    cfg = modernbert.config(
        "tiny", encoder_layers=1, vocab_size=8, pattern=kinds, head="none", d_model=16
    )
    model = build_model(cfg)
    ids = jnp.ones((1, 160), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), ids)["params"]
    forward = jax.jit(lambda ids: model.apply({"params": params}, ids).last_hidden_state)
    changed = np.any(np.asarray(forward(ids) != forward(ids.at[0, 80].set(2))), axis=-1)[0]
    assert np.flatnonzero(changed).tolist() == list(range(80 - 64, 80 + 64 + 1))


def test_padding_beyond_every_window_does_not_reach_the_text():
    """Where torch's eager attention gives NaN: rows far in the padding see nothing at all in local
    layers."""
    model, params = loaded("modernbert_base")
    ids = np.arange(5, 11)[None]
    due = outputs(model, params, {"input_ids": ids}).last_hidden_state
    padded, mask = (np.pad(x, ((0, 0), (0, 14))) for x in (ids, np.ones_like(ids)))
    got = outputs(model, params, {"input_ids": padded, "attention_mask": mask}).last_hidden_state
    np.testing.assert_allclose(got[:, :6], due, rtol=1e-5, atol=1e-5)


def test_scanned_and_side_by_side_are_the_same_numbers():
    scanned, stacked = load_pretrained(ROOT / "modernbert_base", family=FAMILY, scan=True)
    jax.tree.map(
        np.testing.assert_array_equal, unstack_layers(stacked), loaded("modernbert_base")[1]
    )
    for what, error in errors(scanned, stacked, "modernbert_base"):
        assert error < 1e-5, what


def test_the_published_config_is_the_preset_whose_classifier_takes_the_mean():
    cfg = read_config(modernbert, BASE, "masked_lm")
    assert cfg == modernbert.config(
        "base", family="examples.modernbert:MeanPooled", pad_token_id=50283
    )
    windows = [kind.window for kind in cfg.kinds]
    assert windows == [0 if layer % 3 == 0 else 65 for layer in range(22)]
    assert {kind.position for kind in cfg.kinds} == {None, modernbert.Rope(base=10_000.0)}
    assert cfg.position.base == 160_000 and cfg.kinds[0].norm_at == ("mlp_in",)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    daily([("base", 149_655_232), ("large", 395_881_664)], [("base", 149_655_232)]),
)
def test_presets_are_the_published_sizes(preset, parameters):
    shapes = parameter_shapes(build_model(FAMILY, preset))
    assert sum(np.prod(leaf.shape) for leaf in shapes.values()) == parameters


def test_both_spellings_say_the_same():
    config = json.loads((ROOT / "modernbert_base" / "config.json").read_text())
    older = {
        key: value for key, value in config.items() if key not in ("layer_types", "rope_parameters")
    }
    assert "layer_types" in config and "layer_types" not in json.loads(
        (ROOT / "modernbert_masked_lm" / "config.json").read_text()
    )
    older |= {"global_rope_theta": 50.0, "local_rope_theta": 7.0, "global_attn_every_n_layers": 3}
    cfg = read_config(modernbert, config, "none")
    assert read_config(modernbert, older, "none") == cfg
    written = write_config(modernbert, cfg)
    assert {key: written[key] for key in ("layer_types", "rope_parameters")} == {
        key: config[key] for key in ("layer_types", "rope_parameters")
    }
    assert {key: written[key] for key in older if key in written} == {
        key: older[key] for key in older if key in written
    }
    assert written["global_attn_every_n_layers"] == 3


def test_scaled_positions_read_back():
    scaled = {"rope_type": "linear", "factor": 2.0}
    cfg = read_config(modernbert, BASE | {"rope_scaling": scaled}, "none")
    local = cfg.kinds[1].position
    assert (cfg.position.scaling, cfg.position.base, local.factor, local.base) == (
        "linear",
        160_000,
        2,
        10_000,
    )
    assert read_config(modernbert, write_config(modernbert, cfg), "none") == cfg


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classifier_pooling": "max"}, "classifier_pooling='max': must be cls or mean"),
        ({"classifier_bias": True}, "classifier_bias=True changes the numbers"),
        (
            {"rope_parameters": {"chunked_attention": {}}},
            "rope_parameters.chunked_attention: must be those of",
        ),
        (
            {"layer_types": ["full_attention"]},
            "must be 22 entries, each sliding_attention or full_attention",
        ),
        ({"local_attention": 0}, "local_attention=0: must be at least 1"),
    ],
)
def test_what_it_does_not_compute_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        read_config(modernbert, BASE | change, "masked_lm")


@pytest.mark.parametrize("head", modernbert.Model.heads)
def test_rules_cover_every_parameter_and_none_is_idle(head):
    cfg = modernbert.config("tiny", head=head, vocab_size=64)
    paths = parameter_shapes(modernbert.Model(cfg))
    rules = parameter_rules.rules(cfg)
    found = {
        path: next((rule for rule, _ in rules if re.search(rule, path)), None) for path in paths
    }
    assert None not in found.values() and {rule for rule, _ in rules} == set(found.values())


@pytest.mark.nightly
def test_train_convert_and_guess_by_the_command_line(tmp_path, capsys):
    (tmp_path / "page.py").write_text(PAGE)
    cfg = from_config_dict(ExperimentConfig, command_line.config([f"--config={tmp_path}/page.py"]))
    assert from_config_dict(ExperimentConfig, to_config_dict(cfg)) == cfg
    loop.run(cfg, tmp_path / "run")
    model, params = load_pretrained(tmp_path / "run", allow_plugins=True)
    save_pretrained(
        tmp_path / "published", model, params, like=tmp_path / "run", allow_plugins=True
    )
    again, same = load_pretrained(tmp_path / "published", family=FAMILY)
    jax.tree.map(np.testing.assert_array_equal, params, same)
    assert again.cfg.kinds == model.cfg.kinds
    assert load_tokenizer(tmp_path / "published", family=FAMILY).encode("two")
    capsys.readouterr()
    main(
        [
            "fill-mask",
            "--model",
            str(tmp_path / "published"),
            "--family",
            FAMILY,
            "zero [MASK] two",
            "--top_k",
            "3",
        ]
    )
    assert len(capsys.readouterr().out.splitlines()) == 3
    main(
        [
            "embed",
            "--model",
            str(tmp_path / "published"),
            "--family",
            FAMILY,
            "--text",
            "zero",
            "--text",
            "one",
        ]
    )
    assert "1.00" in capsys.readouterr().out
