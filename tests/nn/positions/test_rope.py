import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import bart
from flaxformer_lite.nn.functions.rotary import rotate
from flaxformer_lite.nn.positions.rope import Rope

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"factor": 40.0, "original_max_position_embeddings": 4096}


def pair(p, d, base=10000.0):
    return base ** (-2 * p / d)


def llama3(p, d, base):
    """By wavelength: short ones are kept, long ones stretched, those between blended."""
    plain = pair(p, d, base)
    length = 8192
    wavelength = 2 * math.pi / plain
    if wavelength < length / 4:
        return plain
    if wavelength > length / 1:
        return plain / 8
    blend = (length / wavelength - 1) / (4 - 1)
    return (1 - blend) * plain / 8 + blend * plain


def yarn(p, d, base, truncate=True):
    """By pair: up to the one that turns 32 times in 4096 positions kept, from the one that turns
    once stretched."""
    ends = [d * math.log(4096 / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1)]
    low, high = (math.floor(ends[0]), math.ceil(ends[1])) if truncate else ends
    stretched = min(max((p - max(low, 0)) / (min(high, d - 1) - max(low, 0)), 0), 1)
    return pair(p, d, base) * (stretched / 40 + 1 - stretched)


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({}, pair),
        ({"base": 500000.0}, lambda p, d: pair(p, d, 500000.0)),
        ({"scaling": "linear", "factor": 4.0}, lambda p, d: pair(p, d) / 4),
        ({"scaling": "ntk", "factor": 4.0}, lambda p, d: pair(p, d, 10000 * 4 ** (d / (d - 2)))),
        ({"scaling": "llama3", "base": 500000.0, **LLAMA3}, lambda p, d: llama3(p, d, 500000.0)),
        ({"scaling": "yarn", **YARN}, lambda p, d: yarn(p, d, 10000.0)),
        (
            {"scaling": "yarn", "truncate": False, **YARN},
            lambda p, d: yarn(p, d, 10000.0, truncate=False),
        ),
    ],
)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_frequencies(options, formula, fraction):
    frequencies = Rope(fraction=fraction, **options).frequencies(128)
    d = int(128 * fraction)
    np.testing.assert_allclose(frequencies, [formula(p, d) for p in range(d // 2)], rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "amplitude"),
    [
        ({}, 1.0),
        ({"scaling": "linear", "factor": 4.0}, 1.0),
        ({"scaling": "yarn", **YARN}, 0.1 * math.log(40) + 1),
        ({"scaling": "yarn", "attention_factor": 1.5, **YARN}, 1.5),
        ({"scaling": "yarn", "mscale": 0.707, "mscale_all_dim": 0.707, **YARN}, 1.0),
        (
            {"scaling": "yarn", "mscale": 1.0, "mscale_all_dim": 0.5, **YARN},
            (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1),
        ),
    ],
)
def test_amplitude(options, amplitude):
    encoding = Rope(**options)
    assert encoding.amplitude() == pytest.approx(amplitude)
    phase = encoding.phase(jnp.arange(3)[None], 128)
    np.testing.assert_allclose(
        phase.sin_BTP**2 + phase.cos_BTP**2, np.full((1, 3, 64), amplitude**2), rtol=1e-5
    )


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_partners_and_what_stays(layout, fraction):
    x = jax.random.normal(jax.random.key(0), (1, 1, 1, 8))
    turned = rotate(x, Rope(layout=layout, fraction=fraction).phase(jnp.asarray([[3]]), 8))[0, 0, 0]
    d = int(8 * fraction)
    for p in range(d // 2):
        a, b = (p, p + d // 2) if layout == "halves" else (2 * p, 2 * p + 1)
        z = complex(x[0, 0, 0, a], x[0, 0, 0, b]) * np.exp(3j * pair(p, d))
        assert complex(turned[a], turned[b]) == pytest.approx(z, abs=1e-5)
    np.testing.assert_array_equal(turned[d:], x[0, 0, 0, d:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "pairs"}, r"layout='pairs': no 'pairs';.*choose.*interleaved"),
        (
            {"scaling": "cubic"},
            r"scaling='cubic': no 'cubic';.*choose.*dynamic.*llama3, longrope",
        ),
        ({"base": 0.0}, r"base=0\.0: must be positive"),
        ({"scaling": "yarn", "base": 1.0, **YARN}, r"base=1\.0: all pairs would rotate alike"),
        ({"scaling": "yarn", "beta_slow": 0.0, **YARN}, r"beta_slow=0\.0: must be positive"),
        ({"scaling": "dynamic", "factor": 2.0}, "'dynamic' needs original_max_position_embeddings"),
        (
            {"scaling": "longrope", "original_max_position_embeddings": 8},
            "needs short_factor and long_factor",
        ),
        ({"fraction": 0.0}, r"fraction=0\.0"),
        ({"factor": 0.5}, r"factor=0\.5"),
        ({"scaling": "yarn", "factor": 2.0}, "needs original_max_position_embeddings"),
        ({"low_freq_factor": 4.0}, "low must be below high"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Rope(**options)


def test_dynamic_grows_the_base_with_the_longest_row_and_leaves_short_text_alone():
    encoding = Rope(scaling="dynamic", factor=4.0, original_max_position_embeddings=8)
    plain = Rope().frequencies(16)
    np.testing.assert_array_equal(encoding.frequencies(16), plain)
    np.testing.assert_allclose(encoding.frequencies(16, 5), plain, rtol=1e-6)
    grown = [pair(p, 16, 10000 * (4 * 20 / 8 - 3) ** (16 / 14)) for p in range(8)]
    np.testing.assert_allclose(encoding.frequencies(16, 20), grown, rtol=1e-5)
    positions = jnp.asarray([[0, 1, 2], [17, 18, 19]])
    np.testing.assert_allclose(
        jax.jit(lambda p: encoding.phase(p, 16).sin_BTP)(positions)[0, 1], np.sin(grown), rtol=1e-5
    )


def test_longrope_has_a_factor_for_each_pair_and_others_beyond_the_original_length():
    short = (1.0, 2.0)
    long = (3.0, 5.0)
    encoding = Rope(
        scaling="longrope",
        short_factor=short,
        long_factor=long,
        original_max_position_embeddings=8,
        factor=4.0,
    )
    plain = Rope().frequencies(4)
    for last, factors in ((7, short), (8, long)):
        angle = jax.jit(lambda p: encoding.phase(p, 4).sin_BTP)(jnp.asarray([[1, last]]))[0, 0]
        np.testing.assert_allclose(
            angle, math.sqrt(1 + math.log(4) / math.log(8)) * np.sin(plain / factors), rtol=1e-5
        )
    with pytest.raises(
        ValueError, match="short_factor has 2 numbers: needs one for each of 4 pairs"
    ):
        encoding.rotated(8)


def test_betas_the_wrong_way_round_make_a_ramp_that_falls():
    ramp = Rope(scaling="yarn", beta_fast=1.0, beta_slow=32.0, **YARN)
    low = math.floor(64 * math.log(4096 / (2 * math.pi)) / math.log(10000))
    high = math.ceil(64 * math.log(4096 / (64 * math.pi)) / math.log(10000))
    due = [
        pair(p, 128) * (s / 40 + 1 - s)
        for p in range(64)
        for s in [min(max((p - low) / (high - low), 0), 1)]
    ]
    assert high < low
    np.testing.assert_allclose(ramp.frequencies(128), due, rtol=1e-12)


def test_pairs_are_needed():
    with pytest.raises(
        ValueError,
        match=r"head_dim=10, fraction=0\.5.*5.*not pairs;.*try fraction=0\.4",
    ):
        Rope(fraction=0.5).tables(d_model=20, num_heads=2, head_dim=10, max_length=4)


def test_a_part_given_as_a_quotient_is_that_many_dimensions():
    assert all(
        Rope(fraction=d / h).rotated(h) == d for h in range(2, 130, 2) for d in range(2, h + 1, 2)
    )


def test_heads_of_a_decoder_that_are_no_pairs_are_refused_by_the_config():
    sizes = {"d_model": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    with pytest.raises(ConfigError, match=r"decoder_num_heads=16, d_model=16: head_dim=1"):
        bart.config("tiny", **sizes, mlp_dim=32, decoder_num_heads=16, position=Rope())
