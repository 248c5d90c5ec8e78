"""Token types in decoders: tokens of GPT-2, and an error elsewhere."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.tiny import built, ids, small


def test_gpt2_adds_the_vectors_of_types():
    model, params = built(small("gpt2", number=1))
    types = jnp.asarray([[3] * 5 + [4] * 5] * 2)
    plain = model.apply({"params": params}, ids()).logits
    assert not np.allclose(
        model.apply({"params": params}, ids(), token_type_ids=types).logits, plain
    )
    table = params["token_embed"]["embedding"]
    params["token_embed"]["embedding"] = table.at[0].set(0)  # so that type 0 adds nothing
    zero = model.apply({"params": params}, ids(), token_type_ids=types * 0).logits
    np.testing.assert_array_equal(zero, model.apply({"params": params}, ids()).logits)


def test_llama_refuses_them():
    model, params = built(small("llama", number=1))
    with pytest.raises(ValueError, match="llama has no token types"):
        model.apply({"params": params}, ids(), token_type_ids=ids() * 0)


def test_electra_discriminator_has_no_features():
    model, params = built(small("electra", head="pretraining", number=1))
    with pytest.raises(ValueError, match="judges tokens and predicts none"):
        model.apply({"params": params}, ids(), method="features")
