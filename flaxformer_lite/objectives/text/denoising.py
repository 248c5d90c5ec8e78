"""The base of objectives that hide spans of text, which the target spells out."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.objectives.row_plans import NUM_PLANS, RowPlan, cut_documents, share_rows
from flaxformer_lite.objectives.rows import Example, Rows, Tokenizer, encoder_decoder, row_ids
from flaxformer_lite.objectives.text.text_objective import TextObjective

MIN_PIECE_TOKENS = 2  # tokens of a piece: one to hide, one to keep
# Equal pieces of at most this many tokens are never shorter than MIN_PIECE_TOKENS.
SMALLEST_CAPACITY = 4


@dataclass(frozen=True, kw_only=True)
class Denoising(TextObjective):
    """Cuts documents into pieces, which are corrupted one by one and then packed.

    A target sees only its own source. The length of a piece bounds its corruption's, so rows
    are planned ahead and nothing is ever truncated.
    """

    needs = ("sentinel_ids",)
    skeletons = ("encoder_decoder",)
    num_plans = NUM_PLANS
    # the way out if there are more spans than sentinels
    fewer_spans: ClassVar[str] = "shorten the rows"

    @abc.abstractmethod
    def corrupted(self, tokens: int) -> tuple[int, int]:
        """Returns the largest lengths of the input and target made from a piece.

        Both include the end-of-text token.
        """

    @abc.abstractmethod
    def sentinels(self, tokens: int) -> int:
        """Returns the largest number of sentinels that a piece needs."""

    @abc.abstractmethod
    def corrupt(
        self, tokens: np.ndarray, tokenizer: Tokenizer, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Corrupts a piece into input and target, int32, no longer than `corrupted` states."""

    def lengths(self, length: int, target_length: int) -> tuple[int, int]:
        """Returns the row lengths.

        By default the decoder's row fits the target of the longest text that fits the encoder's row
        when corrupted.
        """
        return length, target_length or self.corrupted(self.capacity(length, length))[1]

    def capacity(self, length: int, target_length: int) -> int:
        """Returns the length of the longest piece whose input and target fit.

        Raises:
          ConfigError: not even a short piece fits.
        """
        tokens = SMALLEST_CAPACITY - 1
        while np.less_equal(self.corrupted(tokens + 1), (length, target_length)).all():
            tokens += 1
        if tokens < SMALLEST_CAPACITY:
            smallest = "{} and {}".format(*self.corrupted(SMALLEST_CAPACITY))
            where = f"data.length={length}, data.target_length={target_length}"
            raise ConfigError(f"{where}: too short to hide spans; must be at least {smallest}.")
        return tokens

    def plan_rows(
        self,
        offsets: Mapping[str, np.ndarray],
        length: int,
        target_length: int,
        tokenizer: Tokenizer,
        *,
        shift: float = 0.0,
    ) -> RowPlan:
        capacity = self.capacity(length, target_length)
        spans = self.sentinels(capacity)
        sentinels = len(tokenizer.sentinel_ids)
        if spans > sentinels:
            raise ConfigError(
                f"data.length={length}: a row has {spans} spans, but the vocabulary only"
                f" {sentinels} sentinels; {self.fewer_spans}."
            )
        plan = cut_documents(offsets["ids"], capacity, MIN_PIECE_TOKENS, shift)
        # No piece has 0 or 1 tokens; their rows are there so that a length is an index.
        sizes = np.asarray(
            [(0, 0), (0, 0), *map(self.corrupted, range(MIN_PIECE_TOKENS, capacity + 1))]
        )
        return share_rows(plan, sizes[plan.length], (length, target_length))

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns inputs (decoder_)input_ids and (decoder_)segment_ids, [T] and [U] int32.

        Targets are labels and weights, [U].
        """
        pairs = [self.corrupt(piece, records.tokenizer, rng) for piece in row_ids(records, index)]
        sources, targets = zip(*pairs, strict=True)
        return encoder_decoder(sources, targets, records)
