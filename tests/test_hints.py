"""Hints for calls that other libraries accept."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import flaxformer_lite
from flaxformer_lite import build_model, hints, load_tokenizer
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.architecture import OTHER_NAMES
from tests.cli import models
from tests.models.tiny import built, small

IDS = jnp.asarray([[1, 2, 3]])


@pytest.fixture(scope="module")
def model_and_params():
    return built(small("gpt2"))


@pytest.mark.parametrize("name", ["generate", "from_pretrained", "push_to_hub", "fit", "config"])
def test_a_method_of_another_library(model_and_params, name):
    model, _ = model_and_params
    with pytest.raises(AttributeError, match=f"no '{name}'; write "):
        getattr(model, name)
    assert not hasattr(model, name) and not hasattr(model, "no_such")


def test_a_model_called_without_parameters(model_and_params):
    model, params = model_and_params
    for call in (lambda: model(IDS), lambda: built(small("bert"))[0](IDS)):
        with pytest.raises(
            AttributeError, match=r"call model.apply\({'params': params}, input_ids"
        ):
            call()
    for first in (params, IDS):
        with pytest.raises(ConfigError, match=r"must be {'params': params}"):
            model.apply(first, IDS)


@pytest.mark.parametrize(
    ("arguments", "way"),
    [
        ({"train": True}, "rngs={'dropout': key}"),
        ({"deterministic": False}, "rngs={'dropout': key}"),
        ({"labels": IDS}, "cross_entropy"),
        ({"past_key_values": None}, "init_cache"),
    ],
)
def test_an_argument_of_another_library(model_and_params, arguments, way):
    model, params = model_and_params
    name = next(iter(arguments))
    with pytest.raises(ConfigError, match=f"takes no '{name}'") as refused:
        model.apply({"params": params}, IDS, **arguments)
    assert way in str(refused.value)


def test_a_misspelled_argument(model_and_params):
    for model, params in (model_and_params, built(small("bert"))):
        with pytest.raises(ConfigError, match="no 'attention_maks'; did you mean 'attention_mask'"):
            model.apply({"params": params}, IDS, attention_maks=IDS)


def test_an_argument_of_another_method(model_and_params):
    model, params = built(small("t5"))
    with pytest.raises(ConfigError, match="method 'encode', takes no 'decoder_segment_ids'"):
        model.apply({"params": params}, IDS, decoder_segment_ids=IDS, method="encode")
    with pytest.raises(ConfigError, match="no 'segment_id'; did you mean 'segment_ids'"):
        model.apply({"params": params}, IDS, segment_id=IDS, method=model.encode)


def test_a_constructor_of_another_library(model_and_params):
    for owner in (type(model_and_params[0]), model_and_params[0]):
        with pytest.raises(AttributeError, match=r"write model, params = load_pretrained\(path\)"):
            owner.from_pretrained  # noqa: B018


def test_fields_of_another_library():
    with pytest.raises(ConfigError, match=r"^num_layers: .*write encoder_layers or decoder_layers"):
        build_model("gpt2", "tiny", num_layers=2)
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    for name, written in OTHER_NAMES.items():
        assert name not in fields
        assert set(written.split(" or ")) <= fields


def test_a_mask_by_position(model_and_params):
    model, params = model_and_params
    with pytest.raises(ConfigError, match=r"takes input_ids by position; .*attention_mask=mask"):
        model.apply({"params": params}, IDS, jnp.ones_like(IDS))
    t5, t5_params = built(small("t5"))
    assert jax.eval_shape(lambda p: t5.apply({"params": p}, IDS, IDS), t5_params).logits.ndim == 3


def test_a_tokenizer_called_as_elsewhere(tmp_path):
    tokenizer = load_tokenizer(models.directory(tmp_path / "gpt2"))
    for argument in ("padding", "truncation", "return_tensors"):
        with pytest.raises(ConfigError, match=f"takes no '{argument}'; leave it out"):
            tokenizer("a text", **{argument: True})
    with pytest.raises(ConfigError, match="takes no 'colour'"):
        tokenizer("a text", colour=True)
    with pytest.raises(AttributeError, match=r"no 'batch_decode'; write .*decode"):
        _ = tokenizer.batch_decode


def test_names_of_the_package():
    with pytest.raises(ImportError, match=r"no 'AutoModel'; write .*load_pretrained"):
        from flaxformer_lite import AutoModel  # noqa: F401
    with pytest.raises(AttributeError, match="did you mean 'Rope'"):
        _ = flaxformer_lite.Rop
    for table in (hints.PACKAGE, hints.MODEL, hints.ARGUMENTS, hints.TOKENIZER, hints.TOKENIZING):
        assert all(table.values())
