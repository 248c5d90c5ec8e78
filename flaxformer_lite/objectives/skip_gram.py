"""Skip-gram with negative sampling: a word predicts each word around it.

Reference: Mikolov et al. 2013, "Distributed Representations of Words and Phrases and their Compositionality", equation 4
and section 2.3 (arXiv:1310.4546).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.functions.tables import take_rows
from flaxformer_lite.objectives.sums import TOKENS, LossSums
from flaxformer_lite.objectives.word_windows import WordWindows, contexts, noise_loss, scores


@dataclass(frozen=True, kw_only=True)
class SkipGram(WordWindows):
    """Maximizes sum_{t, c} log sigma(v_t . u_c) + K E_n log sigma(-v_t . u_n), over the contexts c of each word t."""

    def weigh(self, contexts: np.ndarray) -> np.ndarray:
        return contexts

    def loss(self, outputs: Any, targets: Mapping[str, jax.Array], *, chunks: int) -> LossSums:
        x_BTD, kernel_VD = outputs.projection.x, outputs.projection.kernel_VD
        words_BT, noise_BN, counts_BTS = targets["labels"], targets["noise"], contexts(targets)
        true = (counts_BTS * jax.nn.softplus(-scores(x_BTD, take_rows(kernel_VD, words_BT)))).sum()
        other_BSN = (words_BT[..., None] != noise_BN[:, None]).astype(jnp.float32)
        weight_BTN = jnp.einsum("BTS,BSN->BTN", counts_BTS, other_BSN) * (self.negatives / self.draws)
        noise = noise_loss(x_BTD, weight_BTN, kernel_VD, noise_BN)
        return LossSums({TOKENS: true + noise}, {TOKENS: targets["weights"].sum()}, {})
