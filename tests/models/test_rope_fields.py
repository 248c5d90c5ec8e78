"""Scalings of rotary positions as config.json spells them, beside what transformers makes of
them."""

import functools
import json

import jax
import numpy as np
import pytest

from flaxformer_lite import generate
from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import llama
from flaxformer_lite.models.fields import Fields
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.pretrained.hf_config import read_config
from tests.marks import daily
from tests.pretrained.fixtures import ROOT, loaded

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 3.0],
    "original_max_position_embeddings": 8,
}
IDS = np.asarray([[(7 * i * i + 3 * i) % 57 + 3 for i in range(20)]], np.int32)
# torch 2.13, transformers 5.23, with the weights of llama_lm: the first six logits behind 6 tokens
# and behind 20, and what greedy search writes behind 6.
OF_YARN = (
    [-0.79108, 2.49559, 1.02468, 0.75615, -2.4412, -0.71923],
    [-0.67607, -0.37285, 0.39175, 0.16315, -3.04167, -0.172],
    [1, 30, 22, 58, 27, 31, 14, 15, 1, 30, 22, 12],
)
TORCH = {
    "dynamic": (
        dict(max_position_embeddings=8, rope_scaling={"type": "dynamic", "factor": 3.0}),
        [-1.7276, 1.73585, 1.60436, 1.13709, -2.3685, -1.00074],
        [-0.56279, -0.50971, 1.06406, -0.14918, -0.88915, -0.13401],
        [27, 2, 12, 50, 58, 27, 2, 27, 9, 33, 2, 12],
    ),
    "longrope": (
        dict(
            max_position_embeddings=24,
            original_max_position_embeddings=8,
            rope_scaling={
                "rope_type": "longrope",
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [1.5, 2.0, 3.0, 5.0],
            },
        ),
        [-1.33082, 1.31889, 1.47331, 1.37468, -2.54106, -0.80897],
        [0.91879, -0.65302, 2.17651, 0.15112, 0.71682, 0.414],
        [27, 2, 12, 2, 12, 50, 45, 39, 45, 39, 10, 55],
    ),
    "yarn beside rope_parameters": (
        dict(rope_parameters={"rope_type": "default", "rope_theta": 500.0}, rope_scaling=YARN),
        *OF_YARN,
    ),
    "yarn without a factor": (dict(rope_scaling=YARN | {"factor": None}), *OF_YARN),
    "yarn with its betas the wrong way round": (
        dict(
            rope_scaling=YARN
            | {
                "original_max_position_embeddings": 64,
                "beta_fast": 1.0,
                "beta_slow": 4.0,
            }
        ),
        [-0.38759, 1.81581, 2.03012, 0.35843, -1.83233, -2.13671],
        [-0.03257, -3.08125, 0.7628, 0.72119, -1.19935, -1.3729],
        [27, 41, 33, 2, 12, 27, 58, 27, 40, 50, 33, 45],
    ),
}


@functools.partial(jax.jit, static_argnums=0)
def last_logits(model, params, ids):
    return model.apply({"params": params}, ids).logits[0, -1, :6]


@pytest.mark.parametrize("what", daily(TORCH, ("dynamic",)))
def test_scaled_positions_are_those_of_transformers(what):
    changes, within, beyond, written = TORCH[what]
    published = json.loads((ROOT / "llama_lm" / "config.json").read_text()) | changes
    model = llama.Model(read_config(llama, published, "lm"))
    params = loaded("llama_lm")[1]
    for length, due in ((6, within), (20, beyond)):
        np.testing.assert_allclose(last_logits(model, params, IDS[:, :length]), due, atol=1e-4)
    assert generate(model, params, IDS[:, :6], max_new_tokens=12)[0, 6:].tolist() == written


def read(**values):
    return read_rope(Fields({"max_position_embeddings": 32, **values}))


@pytest.mark.parametrize(
    "values",
    [
        {
            "rope_scaling": (
                YARN | {"truncate": None, "beta_fast": 0, "beta_slow": None, "finetuned": True}
            )
        },
        {"rope_scaling": {"type": "dynamic", "factor": 2}},
        {"rope_scaling": LLAMA3, "rope_theta": 500.0},
        {"rope_scaling": LONGROPE},
        {"rope_scaling": LONGROPE | {"attention_factor": 1.25, "factor": 4}},
    ],
)
def test_what_is_written_reads_back(values):
    rope = read(**values)
    assert read(**json.loads(json.dumps(write_rope(rope)))) == rope


def test_where_the_original_length_stands():
    """Beside the scaling it wins over the one within, as in Phi 3; absent, it is the longest text,
    of dynamic always."""
    without = {
        key: value for key, value in YARN.items() if key != "original_max_position_embeddings"
    }
    assert (
        read(
            rope_scaling=YARN, original_max_position_embeddings=16
        ).original_max_position_embeddings
        == 16
    )
    assert read(rope_scaling=without).original_max_position_embeddings == 32
    dynamic = {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}
    assert (
        read(
            rope_scaling=dynamic, original_max_position_embeddings=16
        ).original_max_position_embeddings
        == 32
    )


def test_an_empty_scaling_leaves_the_parameters_and_the_newer_name_of_the_type_wins():
    parameters = {"rope_type": "linear", "type": "yarn", "factor": 2.0, "rope_theta": 50.0}
    for nothing in ({}, None):
        found = read(rope_scaling=nothing, rope_parameters=parameters, rope_theta=70.0)
        assert (found.scaling, found.base) == ("linear", 50.0)
    assert (
        read(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters=parameters).base
        == 10000.0
    )


def lacks(scaling, name):
    return {key: value for key, value in scaling.items() if key != name}


REFUSED = [
    *[
        (lacks(YARN, "factor"), "yarn' needs it"),
        (LLAMA3 | {"factor": None}, "factor is missing or null"),
    ],
    *[
        (lacks(LLAMA3, name), f"{name} is missing")
        for name in ("factor", "low_freq_factor", "high_freq_factor")
    ],
    *[(lacks(LONGROPE, name), f"{name} is missing") for name in ("short_factor", "long_factor")],
    *[({"rope_type": kind}, "factor is missing") for kind in ("linear", "dynamic")],
    (
        YARN | {"original_max_position_embeddings": None},
        "original_max_position_embeddings is missing or null",
    ),
    (YARN | {"attention_factor": 0}, "attention_factor=0: all logits would be equal"),
    (YARN | {"beta_fast": -1.0}, r"beta_fast=-1\.0: must be positive"),
    (YARN | {"rope_theta": 1}, r"base=1\.0: all pairs would rotate alike"),
    (
        YARN | {"original_max_position_embeddings": 100, "factor": None},
        r"factor=0\.32: must be at least 1, longer over original length",
    ),
    (LLAMA3 | {"low_freq_factor": 0}, r"low_freq_factor=0\.0: must be positive"),
    (
        LONGROPE | {"short_factor": [1.0, "2"]},
        r"rope_scaling\.short_factor\[1\]='2': must be a number",
    ),
    (LONGROPE | {"long_factor": [1.0, 0]}, r"long_factor=\(1\.0, 0\.0\): must be positive"),
    (LONGROPE | {"original_max_position_embeddings": 1}, "longrope divides by its logarithm"),
    ({"rope_type": None}, "of type None is not supported"),
    (
        {"full_attention": {"rope_type": "default"}},
        r"rope_scaling\.full_attention=.* is not known for type",
    ),
]


@pytest.mark.parametrize(("scaling", "told"), REFUSED)
def test_what_transformers_cannot_compute_or_we_cannot_is_refused(scaling, told):
    with pytest.raises(ConfigError, match=told):
        read(rope_scaling=scaling)
