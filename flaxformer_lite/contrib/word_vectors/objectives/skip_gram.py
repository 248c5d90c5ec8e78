"""Skip-gram with negative sampling: a word predicts each word around it.

Reference: Mikolov et al. 2013, "Distributed Representations of Words and Phrases and their
Compositionality", equation 4 and section 2.3 (arXiv:1310.4546).
"""

from dataclasses import dataclass

import jax
import numpy as np

from flaxformer_lite.contrib.word_vectors.word_windows import WordWindows


@dataclass(frozen=True, kw_only=True)
class SkipGram(WordWindows):
    """Scores a word t with each of its contexts c, v_t . u_c."""

    def weigh(self, contexts_T: np.ndarray) -> np.ndarray:
        return contexts_T

    def predictions_of(
        self, x_BTD: jax.Array, contexts_BTS: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return x_BTD, contexts_BTS
