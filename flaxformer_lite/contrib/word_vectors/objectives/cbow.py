"""Continuous bag of words with negative sampling.

The mean of the vectors of the surrounding words predicts a word.

Reference: Mikolov et al. 2013, "Efficient Estimation of Word Representations in Vector Space",
section 3.1 (arXiv:1301.3781); the noise is that of arXiv:1310.4546, equation 4.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.contrib.word_vectors.word_windows import WordWindows


@dataclass(frozen=True, kw_only=True)
class Cbow(WordWindows):
    """Scores a word t with its contexts, h_t . u_t, where h_t is the mean of their v_c."""

    def weigh(self, contexts_T: np.ndarray) -> np.ndarray:
        return contexts_T > 0

    def predictions_of(
        self, x_BTD: jax.Array, contexts_BTS: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        count_BT1 = contexts_BTS.sum(axis=-1, keepdims=True)
        h_BTD = (contexts_BTS.astype(x_BTD.dtype) @ x_BTD) / jnp.maximum(count_BT1, 1).astype(
            x_BTD.dtype
        )
        return h_BTD, jnp.where(count_BT1 > 0, jnp.eye(x_BTD.shape[1])[None], 0.0)
