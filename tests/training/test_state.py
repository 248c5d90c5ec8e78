import jax.numpy as jnp
import pytest

from flaxformer_lite.nn.functions import quantized
from flaxformer_lite.training import state


@pytest.mark.parametrize("form", ["int8", "int4", "nf4"])
def test_numbers_held_in_few_bits_are_counted_and_their_scales_are_not(form):
    codes, scale = quantized.quantize(jnp.ones((8, 6)), 1, form)
    held = {"kernel": {"codes": codes, "scale": scale}, "bias": jnp.zeros(6)}
    params = {"block_0": {"mlp": {"up": held}}, "final_norm": {"scale": jnp.ones(8)}}
    assert state.param_count(params) == 8 * 6 + 6 + 8
