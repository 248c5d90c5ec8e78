"""Policies of rematerialization: the same gradients, for less computation the more memory they
take."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite.analysis import flops
from flaxformer_lite.config import choices
from tests.models.tiny import built, ids, inputs_of, small

KEPT = tuple(remat for remat in choices.REMATS if "attention" in remat)
ORDER = ("full", *KEPT, "none")  # from the least memory to the most


def steps(family, attention, remats, **sizes):
    """For each policy: the gradient, the bytes of the compiled program's temporaries, and its
    FLOPs."""
    cfg = small(family, scan=True, attention=attention, **sizes)
    model, params = built(cfg)
    inputs = inputs_of(cfg, ids(length=64))
    done = {}
    for remat in remats:
        other = type(model)(dataclasses.replace(cfg, remat=remat))
        gradient = jax.grad(
            lambda p, m=other: jnp.sum(jnp.sin(m.apply({"params": p}, **inputs).logits))
        )
        compiled = jax.jit(gradient).lower(params).compile()
        size = compiled.memory_analysis().temp_size_in_bytes
        done[remat] = compiled(params), size, flops.count(gradient, params)
    return done


@pytest.fixture(scope="module")
def llama():
    return steps("llama", "blockwise", ORDER, num_kv_heads=2, decoder_layers=6, max_length=64)


@pytest.mark.nightly
def test_policies_keep_more_memory_and_compute_less_in_their_order(llama):
    sizes, work = ([llama[remat][i] for remat in ORDER] for i in (1, 2))
    assert sizes == sorted(sizes) and sizes[0] < sizes[1] < sizes[-2] <= sizes[-1]
    assert work == sorted(work, reverse=True) and len(set(work[:-1])) == len(work) - 1
    assert work[-2] == work[-1], "with everything named kept, no matrix product runs twice"


@pytest.mark.nightly  # of one policy, tests/models/test_contract.py
@pytest.mark.parametrize("remat", KEPT)
def test_policies_change_no_gradient(llama, remat):
    chex.assert_trees_all_close(llama[remat][0], llama["none"][0], rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_cross_attention_is_kept_too():
    done = steps("t5", "dense", ("full", KEPT[-1], "none"), max_length=64)
    chex.assert_trees_all_close(
        *(gradient for gradient, _, _ in done.values()), rtol=1e-5, atol=1e-5
    )
    full, kept, none = (work for _, _, work in done.values())
    assert full > kept >= none
