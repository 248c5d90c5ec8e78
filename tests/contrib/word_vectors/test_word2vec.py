"""Word2vec: two tables and their dot products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import build_model
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.word_vectors.models import word2vec


def test_two_tables_and_their_dot_products():
    model = build_model("word2vec", "tiny", vocab_size=11, d_model=4)
    ids = jnp.asarray([[1, 5, 10]])
    params = model.init(jax.random.key(0), ids)["params"]
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes == {"token_embed": {"embedding": (11, 4)}, "lm_head": {"kernel": (11, 4)}}
    output = model.apply({"params": params}, ids)
    words = np.asarray(params["token_embed"]["embedding"])
    contexts = np.asarray(params["lm_head"]["kernel"])
    np.testing.assert_allclose(output.logits[0], words[[1, 5, 10]] @ contexts.T, rtol=1e-5)
    np.testing.assert_array_equal(output.last_hidden_state[0], words[[1, 5, 10]])


def test_what_it_refuses():
    without = "encoder_layers=2, decoder_layers=0: word2vec has no layers; set those"
    for fields, message in (({"encoder_layers": 2}, without), ({"head": "none"}, "head='none'")):
        with pytest.raises(ConfigError, match=message):
            word2vec.config("tiny", **fields)
    model = build_model("word2vec", "tiny", vocab_size=11)
    with pytest.raises(ValueError, match="11"):
        model.init(jax.random.key(0), jnp.asarray([[11]]))
