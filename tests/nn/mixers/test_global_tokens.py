"""Attention with global tokens: long rows, padding, refusals; tests/pretrained/test_families.py
compares it with torch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import longformer
from flaxformer_lite.nn.mixers.block_sparse import BlockSparseConfig
from tests.jaxprs import equations
from tests.models.tiny import built, close, ids, logits_of, small

LONG = 1500  # tokens


def classifier(**overrides):
    options = {"head": "sequence_classification", "windows": (3, 2)} | overrides
    return built(small("longformer", **options))


@pytest.mark.nightly
def test_long_rows_need_no_square_of_their_length():
    """In blocks, as on every device for rows that are long."""
    model, params = classifier(max_length=LONG + 2, attention="blockwise")
    x = ids(length=LONG)
    program = jax.make_jaxpr(lambda x: model.apply({"params": params}, x).logits)(x)
    made = (variable.aval for one in equations(program.jaxpr) for variable in one.outvars)
    shapes = [getattr(array, "shape", ()) for array in made]
    largest = max(shapes, key=lambda shape: sum(n >= LONG for n in shape))
    assert sum(n >= LONG for n in largest) == 1, largest
    dense = type(model)(dataclasses.replace(model.cfg, attention="dense"))
    close(
        logits_of(model, params, input_ids=x[:, :300]),
        logits_of(dense, params, input_ids=x[:, :300]),
    )


@pytest.mark.nightly
def test_the_first_token_reads_all_and_is_read_by_all():
    model, params = classifier(encoder_layers=1)
    embed = lambda x: model.apply({"params": params}, x, method="encode")  # noqa: E731
    x = ids(batch=1)
    far = np.abs(embed(x.at[0, 0].set(9)) - embed(x.at[0, 0].set(8)))[0].max(axis=-1)
    assert (far > 1e-6).all()
    last = np.abs(embed(x.at[0, -1].set(9)) - embed(x.at[0, -1].set(8)))[0].max(axis=-1)
    np.testing.assert_array_equal(last > 1e-6, [True, *[False] * 6, True, True, True])


def test_padding_changes_nothing():
    model, params = classifier()
    x = ids(batch=1)
    padded = jnp.pad(x, ((0, 0), (0, 5)), constant_values=1)
    mask = jnp.pad(jnp.ones_like(x), ((0, 0), (0, 5)))
    close(
        logits_of(model, params, input_ids=padded, attention_mask=mask),
        logits_of(model, params, input_ids=x),
    )


@pytest.mark.parametrize("family", ["longformer", "big_bird"])
def test_weights_that_belong_to_no_part_are_dropped_too(family):
    """Those of global tokens, and of the first and last block of rows that are long."""
    options = {"head": "sequence_classification", "dropout": 0.5, "dropout_at": ("attention",)}
    if family == "longformer":
        options["windows"] = (3,)
    else:
        options |= {"mixer": BlockSparseConfig(block=2, random_blocks=0), "max_length": 16}
    model, params = built(small(family, number=1, **options))
    x = ids(length=14)
    first = logits_of(model, params, input_ids=x, rngs={"dropout": jax.random.key(0)})
    second = logits_of(model, params, input_ids=x, rngs={"dropout": jax.random.key(1)})
    assert np.isfinite(first).all() and not np.allclose(first, second)


def test_what_it_refuses():
    model, params = classifier()
    with pytest.raises(ConfigError, match=r"depends on where a row .* packs no documents"):
        model.apply({"params": params}, ids(), segment_ids=jnp.ones((2, 10), jnp.int32))
    mixer = longformer.config().mixer
    with pytest.raises(ConfigError, match="see later ones, so no decoder"):
        built(small("gpt2", mixer=mixer, windows=(3,)))
