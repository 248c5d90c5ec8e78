"""Hints for calls that other libraries accept."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import flaxformer_lite
from flaxformer_lite import build_model, hints, load_pretrained, load_tokenizer
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.architecture import OTHER_NAMES
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.cli import models
from tests.models.tiny import built, small

IDS = jnp.asarray([[1, 2, 3]])


@pytest.fixture(scope="module")
def model_and_params():
    return built(small("gpt2"))


@pytest.mark.parametrize("name", ["generate", "push_to_hub"])
def test_a_method_of_another_library(model_and_params, name):
    model, _ = model_and_params
    with pytest.raises(AttributeError, match=f"no '{name}'; write "):
        getattr(model, name)
    assert not hasattr(model, name) and not hasattr(model, "no_such")
    with pytest.raises(AttributeError, match=r"write model, params = load_pretrained\(path\)"):
        type(model).from_pretrained  # noqa: B018


def test_a_model_called_without_parameters(model_and_params):
    model, params = model_and_params
    for unbound in (model, built(small("bert"))[0]):
        with pytest.raises(AttributeError, match=r"model.apply\({'params': params}, input_ids"):
            unbound(IDS)
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
    (name,) = arguments
    with pytest.raises(ConfigError, match=f"takes no '{name}'.*{way}"):
        model.apply({"params": params}, IDS, **arguments)


def test_a_misspelled_argument_and_one_of_another_method(model_and_params):
    for model, params in (model_and_params, built(small("bert"))):
        with pytest.raises(ConfigError, match="'attention_maks'; did you mean 'attention_mask'"):
            model.apply({"params": params}, IDS, attention_maks=IDS)
    model, params = built(small("t5"))
    with pytest.raises(
        ConfigError, match=r"\.encode\(\) got an unexpected .* 'decoder_segment_ids'"
    ):
        model.apply({"params": params}, IDS, decoder_segment_ids=IDS, method="encode")
    with pytest.raises(ConfigError, match="'segment_id'; did you mean 'segment_ids'"):
        model.apply({"params": params}, IDS, segment_id=IDS, method=model.encode)


def test_fields_of_another_library():
    with pytest.raises(ConfigError, match=r"^num_layers: .*write encoder_layers or decoder_layers"):
        build_model("gpt2", "tiny", num_layers=2)
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    for name, written in OTHER_NAMES.items():
        assert name not in fields
        assert set(written) <= fields


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
    for name, way in {"batch_decode": "decode", "add_tokens": r"data\.tokenizer\.add"}.items():
        with pytest.raises(AttributeError, match=f"no '{name}'; write .*{way}"):
            getattr(tokenizer, name)
    assert len(tokenizer) == tokenizer.vocab_size


MIGRATION = (Path(__file__).parent / "flax_classes.txt").read_text()
CLASSES = re.findall(r"^\| `(Flax\w+)` \|(?: \w+ \|)? `(\w+)` \|$", MIGRATION, re.M)


@pytest.mark.parametrize("framework", ["Flax", "TF", ""])
def test_each_class_of_the_migration_page_leads_on(framework):
    assert len(CLASSES) == 118
    for name, head in CLASSES:
        name = name.replace("Flax", framework)
        if name in hints.PACKAGE or name == "CLIPTextModel" or name.startswith("CLIPTextModelWith"):
            continue  # those without the head, and the one whose family has Model in its name
        with pytest.raises(ImportError) as refused:
            getattr(flaxformer_lite, name)
        written = f"no {name!r}; write model, params = load_pretrained(path, head={head!r})"
        assert written in str(refused.value)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("AutoModelForSequenceClassification", "head='sequence_classification')"),
        ("FlaxAutoModelForCausalLM", "load_pretrained(path) "),
        ("ModernBertDecoderForCausalLM", "head='lm')"),
        ("BertTokenizerFast", "load_tokenizer(path)"),
        ("GPT2Config", "build_model('gpt2', preset, **sizes)"),
        ("pipeline", "generate(model, params, ids)"),
        ("TrainingArguments", "get_config(page)"),
        ("SFTTrainer", "run(get_config('instruct'), workdir)"),
        ("from_pretrained", "load_pretrained(path)"),
    ],
)
def test_a_name_typed_by_habit_leads_on(name, written):
    with pytest.raises(ImportError) as refused:
        exec(f"from flaxformer_lite import {name}")
    assert written in str(refused.value)


@pytest.mark.parametrize("name", ["FlaxViTForImageClassification", "ModelOfMine", "MyConfig"])
def test_other_names_are_plain_errors(name):
    with pytest.raises(AttributeError, match="has no attribute"):
        getattr(flaxformer_lite, name)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("gpt2", "openai-community/gpt2"),
        ("gpt2-xl", "openai-community/gpt2-xl"),
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("distilroberta-base", "distilbert/distilroberta-base"),
        ("xlm-roberta-base", "FacebookAI/xlm-roberta-base"),
        ("t5-small", "google-t5/t5-small"),
        ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
    ],
)
def test_a_bare_name_of_the_hub_has_its_address(name, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = f"{name}: no such directory; did you mean hf://{address}"
    with pytest.raises(WeightsError, match=message):
        load_pretrained(name)
    with pytest.raises(WeightsError, match=r"runs/gpt2: .*s3:// or hf://ORG"):
        load_pretrained("runs/gpt2")


def test_names_of_the_package():
    with pytest.raises(ImportError, match=r"no 'AutoModel'; write .*load_pretrained"):
        from flaxformer_lite import AutoModel  # noqa: F401
    with pytest.raises(AttributeError, match="did you mean 'Rope'"):
        _ = flaxformer_lite.Rop
    for table in (hints.PACKAGE, hints.MODEL, hints.ARGUMENTS, hints.TOKENIZER, hints.TOKENIZING):
        assert all(table.values())
