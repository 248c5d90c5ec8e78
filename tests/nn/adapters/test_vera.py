"""VeRA's random matrices: the same for all matrices of a model, and never trained."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import InitConfig
from flaxformer_lite.nn.adapters.vera import VeraConfig
from flaxformer_lite.nn.functions.sharding import PlacedExecution
from flaxformer_lite.nn.modules.einsum import Einsum


def test_matrices_share_their_projections_and_compute_the_paper_s_equation():
    adapter = VeraConfig(rank=3, targets=(".",), seed=4)
    drawn = {}
    for inputs, outputs in ((4, 6), (16, 2)):
        layer = Einsum(
            "BI,IO->BO",
            {"I": inputs, "O": outputs},
            initial=InitConfig(),
            execution=PlacedExecution(adapter=adapter),
        )
        x = jax.random.normal(jax.random.key(1), (2, inputs))
        params = layer.init(jax.random.key(0), x)["params"]
        params["vera_lambda_b"] = jnp.linspace(0.5, 2, outputs)
        a = params["vera_a"]
        b = params["vera_b"]
        update = np.asarray(params["vera_lambda_d"])[None] * (x @ a) @ b
        due = x @ params["kernel"] + params["vera_lambda_b"][None] * update
        np.testing.assert_allclose(layer.apply({"params": params}, x), due, rtol=1e-4, atol=1e-5)
        drawn[inputs] = a, b
    np.testing.assert_allclose(drawn[4][0], 2 * drawn[16][0][:4], rtol=1e-6)  # sqrt(16 / 4)
    np.testing.assert_array_equal(drawn[4][1][:, :2], drawn[16][1])
    frozen = [
        name for name in adapter.factors if re.search(adapter.frozen, f"layer_0/query/{name}")
    ]
    assert frozen == ["vera_a", "vera_b"]
