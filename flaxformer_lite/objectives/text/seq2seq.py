"""Sequence to sequence: reads a source and writes a target, as the original Transformer does.

Reference: Vaswani et al. 2017, "Attention Is All You Need", section 5 (arXiv:1706.03762).
"""

from dataclasses import dataclass

import numpy as np

from flaxformer_lite.config.rules import NotNegative, Probability
from flaxformer_lite.objectives.row_plans import RowPlan, share_rows
from flaxformer_lite.objectives.rows import Example, Rows, Tokenizer, encoder_decoder, row_ids
from flaxformer_lite.objectives.text.text_objective import TextObjective


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
        self, offsets: np.ndarray, length: int, target_length: int, tokenizer: Tokenizer
    ) -> RowPlan:
        """Packs documents 2 i and 2 i + 1 as pairs, without end-of-text.

        Each row alternates sources and targets.
        """
        count = len(offsets) - 1
        limits = np.tile([length - 1, target_length - 1], count // 2)
        lengths = np.minimum(np.diff(offsets) - 1, limits)
        plan = RowPlan(
            offsets[:-1], lengths.astype(np.int32), np.arange(count), np.arange(0, count + 1, 2)
        )
        return share_rows(plan, lengths.reshape(-1, 2) + 1, (length, target_length))

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs (decoder_)input_ids and (decoder_)segment_ids, [T] and [U] int32.

        Targets are labels and weights, [U].
        """
        texts = [np.append(piece, records.tokenizer.eos_id) for piece in row_ids(records, index)]
        return encoder_decoder(texts[0::2], texts[1::2], records)
