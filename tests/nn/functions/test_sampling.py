"""Logits processors, beside what torch transformers' make of the same logits, and by hand where
those are silent."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions import sampling

FILE = np.load(Path(__file__).parents[2] / "fixtures" / "processors.npz")
LOGITS = jnp.asarray(FILE["logits"])
IDS = jnp.asarray(FILE["input_ids"], jnp.int32)
START = jnp.zeros(len(IDS), jnp.int32)
LENGTH = IDS.shape[1]
OURS = {
    "temperature_0.7": lambda x: sampling.temperature(x, 0.7),
    "top_k_5": lambda x: sampling.top_k(x, 5),
    "top_p_0.6": lambda x: sampling.top_p(x, 0.6),
    "min_p_0.2": lambda x: sampling.min_p(x, 0.2),
    "repetition_penalty_1.7": lambda x: sampling.repetition_penalty(x, IDS, START, LENGTH, 1.7),
    "no_repeat_ngram_size_2": lambda x: sampling.no_repeat_ngram(x, IDS, START, LENGTH, 2),
    "no_repeat_ngram_size_1": lambda x: sampling.no_repeat_ngram(x, IDS, START, LENGTH, 1),
}


@pytest.mark.parametrize("name", sorted(set(FILE) - {"logits", "input_ids"}))
def test_as_transformers(name):
    np.testing.assert_allclose(jax.jit(OURS[name])(LOGITS), FILE[name], rtol=1e-6)


def test_only_written_columns_of_a_row_count():
    tokens = jnp.asarray([[1, 1, 2, 3, 2, 0, 0]], jnp.int32)
    logits = jnp.ones((1, 5))

    @jax.jit
    def seen(start, length):
        halved = sampling.repetition_penalty(logits, tokens, start[None], length, 2.0)
        banned = sampling.no_repeat_ngram(logits, tokens, start[None], length, 2)
        return jnp.flatnonzero(halved[0] < 1, size=5, fill_value=-1), jnp.flatnonzero(
            banned[0] < 1, size=5, fill_value=-1
        )

    def ids(start, length):
        return [
            [int(i) for i in found if i >= 0] for found in seen(jnp.int32(start), jnp.int32(length))
        ]

    assert ids(0, 5) == [[1, 2, 3], [3]]
    assert ids(0, 2) == [[1], [1]]
    assert ids(1, 2) == [[1], []]  # the first 1 is padding: 1 1 has not been written yet
    assert ids(3, 5) == [[2, 3], []]
    assert ids(4, 5) == [[2], []]


def test_trigrams():
    tokens = jnp.asarray([[4, 1, 2, 3, 0, 1, 2], [1, 2, 4, 1, 2, 3, 1]], jnp.int32)
    banned = sampling.no_repeat_ngram(jnp.zeros((2, 5)), tokens, jnp.zeros(2, jnp.int32), 7, 3)
    assert [np.flatnonzero(row < 0).tolist() for row in banned] == [[3], []]
    short = sampling.no_repeat_ngram(
        jnp.zeros((2, 5)), tokens[:, :2], jnp.zeros(2, jnp.int32), 2, 3
    )
    assert not short.any()


def test_filters_keep_the_likeliest_and_no_more_than_asked():
    logits = jnp.log(jnp.asarray([[0.5, 0.25, 0.15, 0.1]]))
    kept = {
        "top_k": (sampling.top_k, {1: 1, 3: 3, 9: 4}),
        "top_p": (sampling.top_p, {0.01: 1, 0.49: 1, 0.51: 2, 0.8: 3, 0.95: 4}),
        "min_p": (sampling.min_p, {1.0: 1, 0.4: 2, 0.25: 3, 0.1: 4}),
    }
    for function, cases in kept.values():
        for value, count in cases.items():
            assert np.isfinite(function(logits, value))[0].tolist() == [True] * count + [False] * (
                4 - count
            )


def test_thresholds_are_exact():
    rng = np.random.default_rng(0)
    rows = [
        rng.standard_normal(1000),
        -1e-3 * rng.random(1000),
        40 * rng.standard_normal(1000),
        np.repeat([1.0, 2.0], 500),
    ]
    logits = np.stack(rows).astype(np.float32)
    logits[0, :990] = -np.inf
    for k in (1, 7, 500, 1000):
        kth = -np.sort(-logits, axis=-1)[:, k - 1 : k]
        np.testing.assert_array_equal(
            jax.jit(sampling.top_k)(logits, k), np.where(logits >= kth, logits, -np.inf)
        )


def test_the_largest_of_long_rows():
    x = np.random.default_rng(1).integers(0, 400, (3, 1500)).astype(np.float32)  # with many ties
    for n in (1, 6, 9):
        values, places = jax.jit(sampling.largest, static_argnums=1)(x, n)
        np.testing.assert_array_equal(values, jax.lax.top_k(x, n)[0])
        np.testing.assert_array_equal(np.take_along_axis(x, np.asarray(places), axis=1), values)
        assert all(len(set(row)) == n for row in np.asarray(places).tolist())
    np.testing.assert_array_equal(sampling.likeliest(jnp.asarray(x)), x.argmax(axis=1))


def test_suppress_and_force():
    logits = jnp.arange(8.0).reshape(2, 4)
    out = sampling.suppress(logits, jnp.asarray([1, 3, 99], jnp.int32))
    assert np.isneginf(out).tolist() == [[False, True, False, True]] * 2
    np.testing.assert_array_equal(out[:, 0], logits[:, 0])
    assert sampling.force(logits, 2).tolist() == [[-np.inf, -np.inf, 0.0, -np.inf]] * 2


def test_draws_follow_the_distribution_and_a_row_its_own_key():
    probabilities = np.asarray([0.6, 0.3, 0.1, 0.0])
    logits = jnp.log(jnp.asarray(probabilities, jnp.float32))[None].repeat(4000, axis=0)
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = np.asarray(jax.jit(sampling.draw)(logits, keys))
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, probabilities, atol=0.025)
    np.testing.assert_array_equal(drawn[7:9], sampling.draw(logits[:2], keys[7:9]))


def test_draws_from_a_long_row_find_every_block_and_nothing_ruled_out():
    weights = np.random.default_rng(0).random(1000) * (np.arange(1000) % 5 == 0)
    weights[700:] = 0
    logits = jnp.log(jnp.asarray(weights, jnp.float32))[None].repeat(20000, axis=0)
    drawn = np.bincount(
        jax.jit(sampling.draw)(logits, jax.random.split(jax.random.key(1), 20000)), minlength=1000
    )
    assert not drawn[weights == 0].any()
    hundreds = drawn.reshape(10, 100).sum(axis=1) / 20000
    np.testing.assert_allclose(
        hundreds, weights.reshape(10, 100).sum(axis=1) / weights.sum(), atol=0.015
    )
