"""Every family and head gives the numbers that torch transformers gave for the same file, and
writes the same file."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite import load_pretrained, registry, save_pretrained
from flaxformer_lite.nn.modules.layout import unstack_layers
from flaxformer_lite.pretrained.save import published_tensors
from tests.marks import daily
from tests.pretrained.fixtures import (
    DAILY,
    MANIFEST,
    NAMES,
    ROOT,
    errors,
    expected,
    loaded,
    outputs,
    part,
    stored,
)

# One of each kind; torch's own bfloat16 is as far from its float32. `make parity` prints them all.
BFLOAT16 = (
    "bert_pretraining",
    "gpt2_lm",
    "llama3_lm",
    "gemma2_lm",
    "gpt_neox_lm",
    "t5_v1_1_conditional_generation",
    "bart_conditional_generation",
)
SCANNED = [n for n in NAMES if (n.endswith("_lm") and "albert" not in n) or n.startswith("t5_cond")]
FLAX = [name for name in NAMES if list((ROOT / name).glob("flax_model*.msgpack"))]


@pytest.mark.parametrize("name", daily(NAMES, DAILY))
def test_float32(name):
    for what, error in errors(*loaded(name), name, MANIFEST[name]["cases"][:1]):
        assert error < 1e-5, what


@pytest.mark.parametrize(
    "name",
    daily([n for n in NAMES if len(MANIFEST[n]["cases"]) > 1], ("bert_masked_lm", "gpt2_lm")),
)
def test_float32_of_other_inputs(name):
    for what, error in errors(*loaded(name), name, MANIFEST[name]["cases"][1:]):
        assert error < 1e-5, what


@pytest.mark.parametrize("name", daily(NAMES, DAILY))
def test_saved_again_the_file_has_the_same_tensors_and_the_config_reads_back(name, tmp_path):
    model, params = loaded(name)
    save_pretrained(tmp_path, model, params)
    same_tensors(tmp_path, ROOT / name)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == [MANIFEST[name]["architecture"]]
    assert config["model_type"] == MANIFEST[name]["model_type"]
    _, same = load_pretrained(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, params, same)


# A fused one, one with a bias of each layer, one whose layers differ, and an encoder-decoder.
@pytest.mark.parametrize(
    "name",
    daily(SCANNED, ("gpt2_lm", "bloom_lm", "gemma2_lm", "t5_conditional_generation")),
)
def test_scanned_parameters_are_the_same_numbers(name, tmp_path):
    model, params = loaded(name)
    if model.cfg.decoder_layers % len(model.cfg.kinds):
        return
    scanned, stacked = load_pretrained(ROOT / name, scan=True)
    # a row of an array on a device is a program; test_old_files.py saves such arrays
    stacked = jax.device_get(stacked)
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked), params)
    save_pretrained(tmp_path, scanned, stacked)
    same_tensors(tmp_path, ROOT / name)


@pytest.mark.parametrize("name", daily(BFLOAT16, ("gpt2_lm",)))
def test_bfloat16(name):
    for what, error in errors(*load_pretrained(ROOT / name, dtype="bfloat16"), name):
        assert error < 0.1, what


@pytest.mark.parametrize("name", [n for n in NAMES if MANIFEST[n]["grads"]])
def test_gradients(name):
    model, params = loaded(name)
    inputs = part(name, "default/in/")
    labels = part(name, "loss/")

    def loss(params):
        out = model.apply({"params": params}, **inputs)
        if out.seq_relationship_logits is None:
            return mean_loss(out.logits, labels["labels"])
        pairs = mean_loss(out.seq_relationship_logits, labels["next_sentence_label"])
        return mean_loss(out.prediction_logits, labels["labels"]) + pairs

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    np.testing.assert_allclose(value, labels["loss"], rtol=1e-5)
    flat = {
        "/".join(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(grads)
    }
    ours = published_tensors(
        registry.resolve("models", model.cfg.family).PUBLISHED, model.cfg, flat
    )
    due = part(name, "grads/")
    assert set(ours) == set(due)
    largest = max(np.abs(g).max() for g in due.values())
    for key, gradient in due.items():
        np.testing.assert_allclose(
            np.asarray(ours[key]), gradient, rtol=1e-4, atol=1e-5 * largest, err_msg=key
        )


@pytest.mark.parametrize("name", FLAX)
def test_old_flax_files_hold_the_same(name, tmp_path):
    for path in (ROOT / name).iterdir():
        if path.name == "config.json" or "msgpack" in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    _, params = load_pretrained(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, params, loaded(name)[1])


@pytest.mark.parametrize(
    "dtype", [np.int64, *(pytest.param(x, marks=pytest.mark.nightly) for x in (np.int16, np.uint8))]
)
def test_integers_of_any_width(dtype):
    model, params = loaded("bert_masked_lm")
    inputs = part("bert_masked_lm", "default/in/")
    due = outputs(
        model, params, {key: value.astype(np.int32) for key, value in inputs.items()}
    ).logits
    given = {key: value.astype(dtype) for key, value in inputs.items()}
    # an argument would become int32
    got = jax.jit(lambda params: model.apply({"params": params}, **given))(params).logits
    np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-6)


def test_the_references_are_not_trivial():
    """A model that ignored its weights would still pass a test against zeros."""
    for name in NAMES:
        assert all(np.abs(v).max() > 1e-3 for k, v in expected(name).items() if "/out/" in k), name


def same_tensors(folder, published):
    got = stored(folder)
    due = stored(published)
    assert set(got) == set(due)
    for key, array in due.items():
        np.testing.assert_array_equal(got[key], array.astype(np.float32), err_msg=key)


def mean_loss(logits, labels):
    kept = labels != -100
    each = optax.softmax_cross_entropy_with_integer_labels(
        logits, jnp.asarray(np.where(kept, labels, 0))
    )
    return jnp.sum(jnp.where(kept, each, 0)) / float(kept.sum())
