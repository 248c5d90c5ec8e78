"""Prefix language modeling.

The beginning of each document is read in both directions, and the rest is predicted.

Reference: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 3.2.3
(arXiv:1910.10683).
"""

from dataclasses import dataclass

import numpy as np

from flaxformer_lite.config.rules import NotNegative, Probability
from flaxformer_lite.objectives.row_plans import NUM_PLANS
from flaxformer_lite.objectives.rows import Example, Rows, next_tokens, row_ids
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.objectives.text.text_objective import TextObjective


@dataclass(frozen=True, kw_only=True)
class PrefixLm(TextObjective):
    """Maximizes sum_{t >= p} log P(x_t | x_<t), where x_<p see each other both ways.

    p is uniform in 1 .. n - 1.

    Rows are packed as in `causal_lm`; each piece of a document in a row has its own prefix.
    """

    z_loss: NotNegative = 0.0
    label_smoothing: Probability = 0.0

    skeletons = ("decoder",)
    num_plans = NUM_PLANS

    plan_rows = CausalLm.plan_rows

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids, segment_ids, [T] int32, and prefix_mask, [T] bool.

        Targets are labels, [T] int32, and weights, [T].
        """
        pieces = row_ids(records, index)
        prefix = np.zeros(records.length + 1, bool)
        at = 0
        for piece in pieces:
            prefix[at : at + int(rng.integers(1, max(len(piece), 2)))] = len(piece) > 1
            at += len(piece)
        example = next_tokens(pieces, records)
        example["inputs"]["prefix_mask"] = prefix[:-1]
        example["targets"]["weights"] *= ~prefix[1:]
        return example
