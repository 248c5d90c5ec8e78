"""A field that config.json leaves out has the value of transformers' class.

default_configs.json is written by tools/default_configs.py.
"""

import dataclasses
import json
import operator
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import gemma4_text
from flaxformer_lite.pretrained.hf_config import MEANING, read_config
from flaxformer_lite.pretrained.safetensors import Tensor

DEFAULTS = json.loads(Path(__file__).with_name("default_configs.json").read_text())
# Their defaults are no model that is read here: heads that do not divide the width, layers of
# another kind, and two configs in one.
UNREAD = ("glm4_moe", "granitemoehybrid", "t5gemma")
SAME = {("siglip_text_model", "projection_size")}  # 0 is the width


def read(model_type, published):
    family = registry.resolve("models", model_type.replace("-", "_"))
    heads = family.PUBLISHED.heads
    head = next((name for name in ("lm", "masked_lm") if name in heads), next(iter(heads)))
    cfg = read_config(family, {"architectures": [heads[head].architecture], **published}, head)
    meant = {}
    for field in dataclasses.fields(cfg):
        meant[field.name] = MEANING.get(field.name, operator.attrgetter(field.name))(cfg)
    return meant


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", [name for name in DEFAULTS if name not in UNREAD])
def test_a_field_left_out_is_as_in_transformers(model_type):
    whole = DEFAULTS[model_type]
    due = read(model_type, whole)
    for name in whole:
        if (model_type, name) in SAME:
            continue
        rest = {other: value for other, value in whole.items() if other != name}
        assert read(model_type, rest) == due, name
    drops = [name for name, value in whole.items() if "drop" in name and type(value) is float]
    for name in drops:  # the others have the rate of the class, not this one's
        rest = {other: value for other, value in whole.items() if other not in drops}
        assert read(model_type, rest | {name: 0.0}) == read(model_type, whole | {name: 0.0}), name


@pytest.mark.parametrize(
    "model_type, published, expected",
    [
        ("esm", {"vocab_size": 33}, {"d_model": 768, "mlp_dim": 3072, "encoder_layers": 12}),
        ("longt5", {}, {"tie_embeddings": True, "dropout": 0.1}),
        ("bert", {"hidden_dropout_prob": 0.0}, {"dropout": 0.1, "dropout_at": ("attention",)}),
        ("bart", {}, {"dropout": 0.1, "dropout_at": ("embed", "branch")}),
        ("gpt_neo", {"resid_dropout": 0.2}, {"dropout": 0.2, "dropout_at": ("branch",)}),
    ],
)
def test_defaults_are_those_of_the_class(model_type, published, expected):
    found = read(model_type, published)
    assert {name: found[name] for name in expected} == expected


def test_gemma_4_may_have_more_rows_in_its_second_table():
    """transformers reads the rows of its tokens alone, and writes 05 for layer 5 of ten or more."""
    published = DEFAULTS["gemma4_text"] | {"vocab_size": 100, "vocab_size_per_layer_input": 107}
    sizes = {layer.head_width for layer, _ in gemma_4(published).layers}
    assert sizes == {256, 512}
    tables = {
        "model.embed_tokens.weight": Tensor(np.zeros((3, 2))),
        "model.embed_tokens_per_layer.weight": Tensor(np.arange(10).reshape(5, 2)),
    }
    made = gemma4_text.leave_out_rows(tables)
    np.testing.assert_array_equal(
        made["model.embed_tokens_per_layer.weight"].read(), [[0, 1], [2, 3], [4, 5]]
    )
    few = {"vocab_size_per_layer_input": 99}
    with pytest.raises(ConfigError, match="must be at least vocab_size=100"):
        read("gemma4_text", published | few)
    with pytest.raises(ConfigError, match="must name layers by their numbers"):
        read("gemma4_text", published | {"per_layer_config": {"full": {"head_dim": 512}}})


def gemma_4(published):
    return read_config(gemma4_text, {"architectures": ["Gemma4ForCausalLM"], **published}, "lm")


def test_granite_without_states_names_a_number_of_their_heads():
    """transformers' own number, 128, must divide twice the width."""
    family = registry.resolve("models", "granitemoehybrid")
    cfg = family.config("tiny", d_model=40, num_heads=5, num_kv_heads=5, head="lm")
    assert family.PUBLISHED.write(cfg)["mamba_n_heads"] == 1
