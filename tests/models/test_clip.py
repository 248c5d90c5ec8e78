"""The vector that CLIP's text model gives a text."""

import jax
import numpy as np
import pytest

from flaxformer_lite import registry
from tests.models import tiny


@pytest.mark.parametrize("end, columns", [(7, (2, 1)), (2, (4, 3))])
def test_a_text_is_its_first_end_token_or_of_old_configs_its_largest(end, columns):
    cfg = registry.resolve("models", "clip_text_model").config(
        "tiny", **tiny.SMALL, decoder_layers=1, head="projection", eos_token_id=end
    )
    model, params = tiny.built(cfg)
    ids = np.array([[1, 5, 7, 7, 9], [6, 7, 3, 8, 7]], np.int32)
    output = jax.jit(lambda params: model.apply({"params": params}, ids))(params)
    pooled = np.asarray(output.last_hidden_state)[np.arange(2), columns]
    kernel = np.asarray(params["text_projection"]["kernel"])
    np.testing.assert_allclose(output.text_embeds, pooled @ kernel, rtol=1e-5, atol=1e-5)
