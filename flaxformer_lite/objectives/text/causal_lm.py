"""Next-token prediction on packed rows (GPT).

Reference: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training",
section 3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from flaxformer_lite.config.rules import NotNegative, OneOf, Probability
from flaxformer_lite.objectives.row_plans import NUM_PLANS, RowPlan, cut_windows
from flaxformer_lite.objectives.rows import Example, Rows, Tokenizer, next_tokens, row_ids
from flaxformer_lite.objectives.text.text_objective import TextObjective

Documents = Annotated[str, OneOf(("apart", "joined"))]


@dataclass(frozen=True, kw_only=True)
class CausalLm(TextObjective):
    """Maximizes sum_t log P(x_t | x_<t), where x_<t is limited to the same document or the row.

    The tokens of all documents are concatenated and cut into rows of length + 1, with one token
    shared between neighbors: there is no padding, and every token except the first of a document is
    a label once. With `documents="joined"` a row is one text, as for GPT-2 and GPT-3, and the mask
    is purely causal, which suits kernels that cannot separate documents (cuDNN's).
    """

    documents: Documents = "apart"  # or joined
    # factor on log(Z)^2, which keeps the scale of logits from drifting (PaLM: 1e-4)
    z_loss: NotNegative = 0.0
    label_smoothing: Probability = 0.0

    skeletons = ("decoder",)
    num_plans = NUM_PLANS

    def plan_rows(
        self,
        offsets: Mapping[str, np.ndarray],
        length: int,
        target_length: int,
        tokenizer: Tokenizer,
        *,
        shift: float = 0.0,
    ) -> RowPlan:
        return cut_windows(offsets["ids"], width=length + 1, stride=length, shift=shift)

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs input_ids and, with documents apart, segment_ids, [T] int32.

        Targets are labels, [T] int32, and weights, [T] float32.
        """
        pieces = row_ids(records, index)
        joined = self.documents == "joined"
        if joined:
            pieces = [np.concatenate(pieces)]
        example = next_tokens(pieces, records)
        if joined:  # padding, if any, comes last, so no label sees it
            del example["inputs"]["segment_ids"]
        return example
