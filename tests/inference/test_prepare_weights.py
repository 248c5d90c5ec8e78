"""Weights prepared to generate: the same numbers, and each matrix in memory once."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer_lite import LoraConfig, generate, prepare_weights, score
from flaxformer_lite.inference import engine
from flaxformer_lite.nn.functions import tuning
from flaxformer_lite.pretrained.place_params import place_params
from flaxformer_lite.pretrained.quantized_params import with_scheme
from tests.models import tiny

CASES = [
    {"family": "llama", "num_kv_heads": 1},  # the kernels of one size and of another
    {"family": "qwen2"},  # with biases
    {"family": "gpt2", "share_layers": (0, 0)},  # without a gate
    {"family": "t5", "mlp": "gated"},  # cross-attention reads two inputs
    {"family": "llama", "dtype": "bfloat16", "param_dtype": "bfloat16"},
]


def layer_of(params):
    return set(flatten_dict(params["decoder"]["layer_0"], sep="/"))


def logits_of(model, params):
    ids = tiny.ids()
    rows = engine.PromptRows(np.zeros(len(ids), np.int32))
    source = None
    if model.cfg.encoder_layers:
        source = ids
        rows = rows.replace(source_mask_BS=np.ones(ids.shape, bool))
    return engine.prefill(model.tuned(), params, ids, rows, source, slots=16)[0]


@pytest.mark.parametrize("options", CASES, ids=lambda options: options["family"])
def test_joined_and_turned_matrices_give_the_same_logits(options):
    model, params = tiny.built(tiny.small(**options))
    held = prepare_weights(model, dict(params))
    names = layer_of(held)
    assert "attention/joined/kernel" in names
    assert "attention/query/kernel" not in names
    due = logits_of(model, params)
    tolerance = 1e-5 if model.cfg.dtype == "float32" else 2e-2
    np.testing.assert_allclose(logits_of(model, held), due, rtol=0, atol=tolerance)
    prompts = [[3, 5, 7], [2]]
    options = {"max_new_tokens": 5, "decoder_start_token_id": 0}
    if not model.cfg.encoder_layers:
        options.pop("decoder_start_token_id")
    for rows in (prompts, prompts[:1]):
        np.testing.assert_array_equal(
            generate(model, held, rows, **options), generate(model, params, rows, **options)
        )
    scores = [score(model, p, prompts, [[4], [1, 6]]).log_likelihood for p in (held, params)]
    np.testing.assert_allclose(*scores, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("scheme", ["int8", "int4", "nf4"])
def test_codes_and_scales_are_joined_like_the_matrices_that_they_stand_for(scheme):
    plain, floats = tiny.built(tiny.small("llama", d_model=32, head_dim=8, mlp_dim=64))
    model, stored = with_scheme(plain, floats, scheme)
    params = place_params(model.cfg, stored)
    held = prepare_weights(model, dict(params))
    assert {"attention/joined/kernel/codes", "mlp/joined/kernel/scale"} <= layer_of(held)
    np.testing.assert_allclose(logits_of(model, held), logits_of(model, params), rtol=0, atol=1e-5)


def test_a_matrix_in_int8_is_held_in_the_order_that_it_is_multiplied_in_alone(monkeypatch):
    monkeypatch.setattr(tuning, "has_integer_tiles", lambda: True)
    plain, floats = tiny.built(tiny.small("llama"))
    model, stored = with_scheme(plain, floats, "int8")
    params = place_params(model.cfg, stored)
    due = logits_of(model, engine.add_output_rows(model.tuned(), params))
    held = prepare_weights(model, params)
    assert not any(name.endswith(("codes", "scale")) for name in layer_of(held) if "kernel" in name)
    assert engine.add_output_rows(model.tuned(), held) is held
    assert prepare_weights(model, held) is held
    np.testing.assert_allclose(logits_of(model, held), due, rtol=0, atol=1e-5)


def test_activations_keep_their_dtype_where_weights_have_another():
    model, params = tiny.built(tiny.small("llama", dtype="bfloat16"))
    held = prepare_weights(model, dict(params))
    assert held["decoder"]["layer_0"]["mlp"]["down"]["kernel_OI"].dtype == "float32"
    of_each = [model.apply({"params": p}, tiny.ids()).last_hidden_state for p in (params, held)]
    assert [x.dtype for x in of_each] == ["bfloat16"] * 2


def test_weights_of_numpy_are_prepared_too():
    model, params = tiny.built(tiny.small("llama"))
    held = prepare_weights(model, jax.tree.map(np.asarray, params))
    np.testing.assert_allclose(logits_of(model, held), logits_of(model, params), rtol=0, atol=1e-5)


def test_no_matrix_is_in_memory_twice():
    model, params = tiny.built(tiny.small("llama"))
    params = jax.tree.map(jnp.copy, params)
    sizes = sum(x.nbytes for x in jax.tree.leaves(params))
    layer = params["decoder"]["layer_0"]
    parts = [layer["attention"]["value"]["kernel"], layer["mlp"]["up"]["kernel"]]
    parts.append(layer["mlp"]["down"]["kernel"])
    gone = [weakref.ref(part) for part in parts]
    del layer, parts
    held = prepare_weights(model, params)
    assert params == {}
    assert [part() for part in gone] == [None] * 3
    assert sum(x.nbytes for x in jax.tree.leaves(held)) == sizes


def test_what_cannot_be_joined_stays_as_it_is():
    for options in ({"adapter": LoraConfig(rank=2)}, {"scan": True}):
        model, params = tiny.built(tiny.small("llama", **options))
        assert prepare_weights(model, params) is params
    model, params = tiny.built(tiny.small("llama"))
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("fsdp",))
    sharded = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    assert prepare_weights(model, sharded) is sharded
    # Without a bias of the keys, one layer would need zeros for it.
    model, params = tiny.built(tiny.small("llama", bias_at=("query", "value")))
    assert "attention/query/kernel" in layer_of(prepare_weights(model, dict(params)))
