"""Sequence to sequence: reads a source and writes a target, as the original Transformer does.

Reference: Vaswani et al. 2017, "Attention Is All You Need", section 5 (arXiv:1706.03762).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flaxformer_lite.config.rules import NotNegative, Probability
from flaxformer_lite.objectives.row_plans import WHOLE_DOCUMENTS, RowPlan, share_rows
from flaxformer_lite.objectives.rows import Example, Rows, Tokenizer, encoder_decoder
from flaxformer_lite.objectives.text.text_objective import TextObjective

SIDES = ("source", "target")  # columns of the ids of a pair


@dataclass(frozen=True, kw_only=True)
class Seq2seq(TextObjective):
    """Maximizes sum_t log P(y_t | y_<t, x) over lines of jsonl with "source" x and "target" y.

    Neighboring pairs share a row as long as both sides fit. A side longer than its row is cut; the
    end-of-text token is kept.
    """

    z_loss: NotNegative = 0.0
    label_smoothing: Probability = 0.1  # the paper's

    columns = ("source", "target")
    skeletons = ("encoder_decoder",)

    def lengths(self, length: int, target_length: int) -> tuple[int, int]:
        """Returns the row lengths; the decoder's defaults to the encoder's."""
        return length, target_length or length

    def plan_rows(
        self,
        offsets: Mapping[str, np.ndarray],
        length: int,
        target_length: int,
        tokenizer: Tokenizer,
    ) -> RowPlan:
        """Packs whole pairs while what is left of both sides fits."""
        budgets = (length, target_length)
        costs = []
        for name, budget in zip(SIDES, budgets, strict=True):
            costs.append(np.minimum(np.diff(offsets[name]), budget))
        count = np.arange(len(costs[0]) + 1)
        plan = RowPlan(WHOLE_DOCUMENTS, WHOLE_DOCUMENTS, count[:-1], count)
        return share_rows(plan, np.stack(costs, axis=1), budgets)

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs (decoder_)input_ids and (decoder_)segment_ids, [T] and [U] int32.

        Targets are labels and weights, [U].
        """
        pairs = records.pieces(index)
        sources = [_cut(pair["source"], records.length) for pair in pairs]
        targets = [_cut(pair["target"], records.target_length) for pair in pairs]
        return encoder_decoder(sources, targets, records)


def _cut(ids: np.ndarray, most: int) -> np.ndarray:
    """Returns the first ids of a text, and its end-of-text id."""
    return np.append(ids[: min(len(ids), most) - 1], ids[-1])
