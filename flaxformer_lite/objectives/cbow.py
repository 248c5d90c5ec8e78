"""Continuous bag of words with negative sampling: the words around a word predict it by the mean of their vectors.

Reference: Mikolov et al. 2013, "Efficient Estimation of Word Representations in Vector Space", section 3.1
(arXiv:1301.3781); the noise is that of arXiv:1310.4546, equation 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.functions.tables import take_rows
from flaxformer_lite.objectives.sums import TOKENS, LossSums
from flaxformer_lite.objectives.word_windows import WordWindows, contexts, noise_loss


@dataclass(frozen=True, kw_only=True)
class Cbow(WordWindows):
    """Maximizes sum_t log sigma(h_t . u_t) + K E_n log sigma(-h_t . u_n), h_t = mean_c v_c over the contexts c of word t."""

    def weigh(self, contexts: np.ndarray) -> np.ndarray:
        return contexts > 0

    def loss(self, outputs: Any, targets: Mapping[str, jax.Array], *, chunks: int) -> LossSums:
        x_BTD, kernel_VD = outputs.projection.x, outputs.projection.kernel_VD
        words_BT, noise_BN, weights_BT = targets["labels"], targets["noise"], targets["weights"]
        counts_BTS = contexts(targets).astype(x_BTD.dtype)
        h_BTD = (counts_BTS @ x_BTD) / jnp.maximum(counts_BTS.sum(-1, keepdims=True), 1)
        own_BTD = take_rows(kernel_VD, words_BT).astype(h_BTD.dtype)
        true_BT = jnp.einsum("BTD,BTD->BT", h_BTD, own_BTD, preferred_element_type=jnp.float32)
        other_BTN = words_BT[..., None] != noise_BN[:, None]
        weight_BTN = jnp.where(other_BTN, weights_BT[..., None] * (self.negatives / self.draws), 0.0)
        noise = noise_loss(h_BTD, weight_BTN, kernel_VD, noise_BN)
        return LossSums(
            {TOKENS: (weights_BT * jax.nn.softplus(-true_BT)).sum() + noise}, {TOKENS: weights_BT.sum()}, {}
        )
