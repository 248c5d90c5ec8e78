"""Contract of every adapter: a new one changes nothing, merged it computes the same, and no
product is computed twice."""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite import Execution, build_model, merge_adapter, registry
from flaxformer_lite.nn.adapters.dora import DoraConfig
from tests.marks import daily
from tests.models import tiny

NAMES = registry.available("adapters")


def adapted(family, name, **options):
    adapter = registry.resolve_class("adapters", name)(targets=(".",))
    return tiny.built(tiny.small(family, adapter=adapter, **{"number": 1, **options}))


def without_factors(model, params):
    flat = flatten_dict(params)
    names = model.cfg.adapter.factors
    return unflatten_dict({path: leaf for path, leaf in flat.items() if path[-1] not in names})


def moved(model, params):
    """Adds noise to the factors, as training does."""
    rng = np.random.default_rng(0)
    flat = flatten_dict(params)
    for path, leaf in flat.items():
        if path[-1] in model.cfg.adapter.factors:
            flat[path] = leaf + 0.3 * rng.standard_normal(leaf.shape).astype(np.float32)
    return unflatten_dict(flat)


@pytest.mark.parametrize("name", daily(NAMES, ("lora", "ia3")))
def test_a_new_one_changes_nothing(name):
    cfg = tiny.small("gpt2", number=1)
    adapter = registry.resolve_class("adapters", name)()
    model = build_model(dataclasses.replace(cfg, adapter=adapter))
    params = jax.jit(model.init)(jax.random.key(0), tiny.ids())["params"]
    base = without_factors(model, params)
    assert len(flatten_dict(params)) > len(flatten_dict(base))
    ours = tiny.logits_of(model, params, input_ids=tiny.ids())
    tiny.close(ours, tiny.logits_of(build_model(cfg), base, input_ids=tiny.ids()), 1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("family", "run"),
    [
        ("gpt2", {}),
        pytest.param("t5", {}, marks=pytest.mark.nightly),
        pytest.param("llama", {"scan": True, "remat": "full"}, marks=pytest.mark.nightly),
    ],
)
def test_merged_it_computes_the_same(family, run, name):
    model, params = adapted(family, name, number=1, **run)
    params = moved(model, params)
    x = tiny.inputs_of(model.cfg, tiny.ids())
    plain, merged = merge_adapter(model, params)
    assert plain.cfg.adapter is None
    factors = {path for path in flatten_dict(params) if path[-1] in model.cfg.adapter.factors}
    kernels = {path for path in flatten_dict(merged) if path[-1] == "kernel"}
    in_layers = {path[:-1] for path in kernels if "layer" in "/".join(path)}
    assert {path[:-1] for path in factors} >= in_layers
    ours = tiny.logits_of(model, params, **x)
    tiny.close(ours, tiny.logits_of(plain, merged, **x), 1e-4)
    assert np.abs(ours - tiny.logits_of(plain, without_factors(model, params), **x)).max() > 1e-2


@pytest.mark.parametrize("name", daily(["dora", "ia3"], ["ia3"]))
def test_a_small_change_of_a_factor_is_seen_in_bfloat16(name):
    """One per thousand on each factor or length, where bfloat16 has only steps of four and more."""
    model, params = adapted("gpt2", name, dtype="bfloat16")
    flat = flatten_dict(params)
    for path, leaf in flat.items():
        if path[-1] == model.cfg.adapter.factors[-1]:
            flat[path] = leaf * 1.001
    before = tiny.logits_of(model, params, input_ids=tiny.ids())
    after = tiny.logits_of(model, unflatten_dict(flat), input_ids=tiny.ids())
    assert np.any(np.asarray(before) != np.asarray(after))


# Beside the input, on it alone, and on both.
@pytest.mark.parametrize("name", daily(NAMES, ("lora", "dora")))
def test_no_matrix_is_multiplied_twice(name):
    """The compiled program has the base's large products, and only thin ones besides."""
    cfg = tiny.small("gpt2", 1, d_model=64, num_heads=2, mlp_dim=64, vocab_size=64)
    adapter = registry.resolve_class("adapters", name)(targets=(".",))
    x = jnp.zeros((2, 8), jnp.int32)

    def flops(cfg):
        model = build_model(cfg)
        params = jax.eval_shape(model.init, jax.random.key(0), x)["params"]
        apply = jax.jit(lambda params: model.apply({"params": params}, x).logits)
        return apply.lower(params).compile().cost_analysis()["flops"]

    thin = dataclasses.replace(adapter, rank=1) if hasattr(adapter, "rank") else adapter
    # An adapter of rank 1 adds A, B, and for DoRA the norm of W + A B: three flops an entry, and
    # more by the count of jaxlib 0.10.0.
    entries = sum(
        leaf.size
        for path, leaf in flatten_dict(
            jax.eval_shape(build_model(cfg).init, jax.random.key(0), x)["params"]
        ).items()
        if path[-1] == "kernel"
    )
    assert flops(dataclasses.replace(cfg, adapter=thin)) < flops(cfg) + 12 * entries
    assert 2 * 16 * entries > 12 * entries  # what a second product of 16 tokens would add


class Matrix(nn.Module):
    """A layer that DoRA adapts."""

    equation: ClassVar[str] = "BTD,DF->BTF"
    sizes: ClassVar[dict[str, int]] = {"D": 8, "F": 8}
    execution: ClassVar[Execution] = Execution()

    @nn.compact
    def __call__(self, x, kernel):
        return DoraConfig(rank=2, dropout=0.5).apply(self, x, kernel, x @ kernel, None)


@pytest.mark.nightly
def test_dora_drops_what_peft_drops_and_a_column_of_zeros_is_no_nan():
    """y = x W + (s - 1) * dropout(x) W with s = 2; W is the unit matrix but for a column."""
    x = jnp.arange(1.0, 65).reshape(1, 8, 8)
    kernel = jnp.eye(8).at[7, 7].set(0)
    params = Matrix().init(jax.random.key(0), x, kernel)["params"]
    params = {**params, "dora_magnitude": 2 * params["dora_magnitude"]}

    y, grads = jax.jit(
        lambda params: (
            Matrix().apply({"params": params}, x, kernel, rngs={"dropout": jax.random.key(0)}),
            jax.grad(lambda p: Matrix().apply({"params": p}, x, kernel).sum())(params),
        )
    )(params)
    times = (y / x)[..., :7]
    assert np.isclose(times, 1).sum() + np.isclose(times, 3).sum() == times.size
    assert 0.3 < np.isclose(times, 3).mean() < 0.7
    assert not y[..., 7].any()
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(grads))
