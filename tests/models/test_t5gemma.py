"""T5Gemma hides padding from its encoder without being asked, but not from its decoder."""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.models import t5gemma
from tests.models import tiny


def test_the_encoder_hides_padding_without_a_mask():
    cfg = tiny.small("t5gemma", number=1, windows=(3,), decoder_windows=(3,), pad_token_id=0)
    model, params = tiny.built(cfg)
    ids = tiny.ids().at[:, 7:].set(0)
    mask = (ids != 0).astype(jnp.int32)

    @jax.jit
    def outputs(params, ids, **inputs):
        return model.apply({"params": params}, ids, decoder_input_ids=tiny.ids(1), **inputs)

    plain = outputs(params, ids)
    masked = outputs(params, ids, attention_mask=mask)
    encoded = [out.encoder_last_hidden_state[:, :7] for out in (plain, masked)]
    np.testing.assert_allclose(*encoded, rtol=1e-6, atol=1e-6)
    assert not np.allclose(plain.logits, masked.logits)


def test_a_large_encoder_with_a_small_decoder():
    cfg = t5gemma.config("9b_2b")
    assert (cfg.encoder_layers, cfg.d_model, cfg.num_heads) == (42, 3584, 16)
    assert (cfg.decoder_layers, cfg.of_decoder.d_model, cfg.of_decoder.num_heads) == (26, 2304, 8)
