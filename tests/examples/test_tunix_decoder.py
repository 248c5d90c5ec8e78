"""The calls that Tunix makes, without Tunix; benchmarks/tunix_door.py runs Tunix itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from examples.tunix_decoder import TunixDecoder
from flaxformer_lite import build_model, generate
from flaxformer_lite.nn.adapters.lora import LoraConfig
from tests.models.tiny import built, small

PROMPTS = [[5, 7, 9, 11, 4], [8, 3]]
WIDTH = 6  # of the prompts, padded on the left
SLOTS = 16
NEW = 5


def greedy(module, prompts):
    """Writes as Tunix's sampler does: a prefill, then one token at a time, over a fixed cache."""
    tokens_BS = np.zeros((len(prompts), SLOTS), np.int32)
    for row, prompt in enumerate(prompts):
        tokens_BS[row, WIDTH - len(prompt) : WIDTH] = prompt
    keep_BS = jnp.asarray(tokens_BS != 0).at[:, WIDTH:].set(True)
    positions_BS = jnp.maximum(jnp.cumsum(keep_BS, axis=1) - 1, 0)
    definition, state = nnx.split(module)

    @jax.jit
    def write(state, tokens_BS, cache):
        merged = nnx.merge(definition, state)
        mask_BTS = jnp.tril(jnp.ones((1, WIDTH, SLOTS), bool)) & keep_BS[:, None]
        prompt = tokens_BS[:, :WIDTH]
        logits, cache = merged(
            prompt, positions_BS[:, :WIDTH], cache, mask_BTS, decode_only_last_token=True
        )
        tokens_BS = tokens_BS.at[:, WIDTH].set(logits[:, -1].argmax(-1))

        def step(slot, carry):
            tokens_BS, cache = carry
            mask_B1S = (jnp.arange(SLOTS) <= slot)[None, None] & keep_BS[:, None]
            token_B1 = jax.lax.dynamic_slice_in_dim(tokens_BS, slot, 1, axis=1)
            position_B1 = jax.lax.dynamic_slice_in_dim(positions_BS, slot, 1, axis=1)
            logits, cache = merged(token_B1, position_B1, cache, mask_B1S)
            return tokens_BS.at[:, slot + 1].set(logits[:, -1].argmax(-1)), cache

        return jax.lax.fori_loop(WIDTH, WIDTH + NEW - 1, step, (tokens_BS, cache))

    tokens_BS, cache = write(
        state, jnp.asarray(tokens_BS), module.init_cache(len(prompts), SLOTS, jnp.float32)
    )
    assert all(cache["layer_0"]["end_index"] == WIDTH + NEW - 1)
    return np.asarray(tokens_BS)[:, WIDTH : WIDTH + NEW]


@pytest.mark.nightly  # slow; the logits are compared below
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["two", "one"])
@pytest.mark.parametrize("family", ["gemma2", "bloom", "deepseek_v3", "qwen3_next"])
def test_it_writes_what_generate_writes(family, prompts):
    model, params = built(small(family))
    want = generate(model, params, prompts, max_new_tokens=NEW)[:, -NEW:]
    np.testing.assert_array_equal(greedy(TunixDecoder(model, params), prompts), want)


def test_logits_of_a_row_are_those_of_the_model_and_nan_for_another_mask():
    model, params = built(small("gemma2"))
    module = TunixDecoder(model, params)
    ids_BT = jnp.array([[5, 7, 9, 11]])
    positions_BT = jnp.arange(4)[None]
    causal_BTT = jnp.tril(jnp.ones((1, 4, 4), bool))
    document = jnp.ones((1, 4), jnp.int32)
    want = jax.jit(model.apply)({"params": params}, ids_BT).logits
    call = nnx.jit(lambda module, mask: module(ids_BT, positions_BT, None, mask)[0])
    np.testing.assert_allclose(call(module, causal_BTT), want, atol=1e-5)
    assert np.isnan(call(module, jnp.ones((1, 4, 4), bool))).all()
    pack = nnx.jit(lambda module: module(ids_BT, positions_BT, segment_ids=document)[0])
    packed = pack(module)
    np.testing.assert_allclose(packed, want, atol=1e-5)


def test_an_adapter_is_what_tunix_trains():
    model, params = built(small("llama", 1, adapter=LoraConfig(rank=2)))
    module = TunixDecoder(model, params)
    names = {path[-1] for path, _ in nnx.to_flat_state(nnx.state(module, nnx.LoRAParam))}
    assert names == {"lora_a", "lora_b"}
    assert jax.tree.structure(module.linen()[1]) == jax.tree.structure(params)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("t5", {}, "t5: Tunix takes decoders alone"),
        ("llama", {"scan": True}, "with scan=False"),
        ("bert", {}, "bert: Tunix takes decoders alone"),
    ],
)
def test_what_tunix_cannot_take_is_refused(family, fields, message):
    with pytest.raises(ValueError, match=message):
        TunixDecoder(build_model(family, "tiny", **fields), {})
