import jax.numpy as jnp
import numpy as np

from flaxformer_lite.nn.functions.pooling import mean_pool


def test_the_unit_vector_along_the_mean_of_kept_tokens():
    x_BTD = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    keep_BT = np.asarray([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32)
    for row, pooled in enumerate(np.asarray(mean_pool(jnp.asarray(x_BTD), jnp.asarray(keep_BT)))):
        mean = x_BTD[row][keep_BT[row] == 1].mean(axis=0)
        np.testing.assert_allclose(pooled, mean / np.linalg.norm(mean), rtol=1e-5)
