"""LoRA: equal to its base at the start and to its merged matrices afterwards, on the matrices that
its patterns name."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from flaxformer_lite import LoraConfig, build_model, generate, init_cache, merge_adapter
from flaxformer_lite.config import ConfigError
from tests.models import tiny

EVERY = LoraConfig(rank=3, alpha=5.0, targets=(".",))


def adapted(family, adapter=EVERY, **options):
    return tiny.built(tiny.small(family, adapter=adapter, **{"number": 1, **options}))


def factors(params):
    return {path: leaf for path, leaf in flatten_dict(params, sep="/").items() if "/lora_" in path}


def test_a_new_one_draws_the_first_factors_of_query_and_value():
    model = build_model(tiny.small("gpt2", number=1, adapter=LoraConfig()))
    new = factors(jax.jit(model.init)(jax.random.key(0), tiny.ids())["params"])
    assert {path.split("/")[-2] for path in new} == {"query", "value"}
    drawn = [leaf for path, leaf in new.items() if path.endswith("a")]
    assert all(0.2 < np.abs(a).max() <= 0.25 for a in drawn)  # uniform within 1 / sqrt(16)


def test_the_scale_of_a_rank():
    assert (
        LoraConfig(rank=4, alpha=8.0).scale == 2
        and LoraConfig(rank=4, alpha=8.0, rslora=True).scale == 4
    )


def test_what_is_trained_whole_is_not_adapted():
    _, params = adapted("bert", head="sequence_classification")
    assert factors(params) and not any("classifier" in path for path in factors(params))


def test_the_input_of_a_product_is_dropped_out_where_a_key_is_passed():
    model, params = adapted("gpt2", dataclasses.replace(EVERY, dropout=0.5))
    apply = functools.partial(model.apply, {"params": params}, tiny.ids())
    drops = [apply(rngs={"dropout": jax.random.key(seed)}).logits for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drops[0], drops[1])
    assert (
        np.abs(drops[0] - drops[2]).max() > 1e-3 and np.abs(drops[0] - apply().logits).max() > 1e-3
    )
    still = merge_adapter(model, params)
    tiny.close(apply().logits, still[0].apply({"params": still[1]}, tiny.ids()).logits, 1e-4)


@pytest.mark.nightly
def test_generation_by_a_cache_is_that_of_the_merged_model():
    model, params = adapted("llama")
    plain, merged = merge_adapter(model, params)
    prompt = tiny.ids(length=4)
    np.testing.assert_array_equal(
        generate(model, params, prompt, max_new_tokens=6),
        generate(plain, merged, prompt, max_new_tokens=6),
    )
    first = model.apply({"params": params}, prompt, cache=init_cache(model.cfg, 2, 4))
    tiny.close(first.logits, model.apply({"params": params}, prompt).logits)


@pytest.mark.nightly
def test_the_dtypes_of_weights_and_of_activations():
    model, params = adapted("gpt2", param_dtype="bfloat16", dtype="bfloat16")
    assert {leaf.dtype for leaf in factors(params).values()} == {jnp.dtype("bfloat16")}
    whole = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    exact = build_model(dataclasses.replace(model.cfg, dtype="float32", param_dtype="float32"))
    low, high = (
        m.apply({"params": p}, tiny.ids()).logits for m, p in ((model, params), (exact, whole))
    )
    assert np.abs(low - high).max() < 0.1 * np.abs(high).max()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 0}, "rank=0: must be positive"),
        ({"targets": ("(",)}, "targets=.*not a regular expression"),
        ({"dropout": 1.0}, "dropout=1.0: must be a probability"),
    ],
)
def test_impossible_values(options, said):
    with pytest.raises(ConfigError, match=said):
        LoraConfig(**options)


def test_a_pattern_that_adapts_nothing_is_refused_with_what_there_is():
    _, params = adapted("gpt2")
    paths = list(flatten_dict(params, sep="/"))
    EVERY.check(paths)
    for wrong in ("valeu", "norm", "token_embed", "/bias$"):
        with pytest.raises(
            ConfigError,
            match=rf"{re.escape(repr(wrong))}: .*called down, key, out, query, up, value",
        ):
            dataclasses.replace(EVERY, targets=(".", wrong)).check(paths)
