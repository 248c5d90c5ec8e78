"""T5's span corruption: spans of text are replaced by sentinels in the input, and spelled out in the target.

Reference: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 3.1.4 and 3.3.4 (arXiv:1910.10683).
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from flaxformer_lite.config.rules import INT32, ConfigError, NotNegative, Probability, Range, Share
from flaxformer_lite.objectives.packing import Packing, cut, share_rows
from flaxformer_lite.objectives.rows import encoder_decoder
from flaxformer_lite.objectives.text import TextObjective

SHORTEST = 2  # tokens of a piece: one to hide, one to keep
SMALLEST_CAPACITY = 4  # equal pieces of at most this many tokens are never shorter than SHORTEST

Span = Annotated[float, Range(1, INT32, "be at least one token")]


@dataclass(frozen=True, kw_only=True)
class SpanCorruption(TextObjective):
    """Turns "Thank you for inviting me" into input "Thank <0> inviting me", target "<0> you for", with end-of-text.

    Documents are cut into pieces, which are corrupted one by one and then packed; a target sees only its own source.
    The length of a piece determines that of its corruption, so rows are planned exactly and nothing is ever cut off.
    """

    noise_density: Share = 0.15  # share of the tokens that are hidden
    mean_span: Span = 3.0  # tokens
    z_loss: NotNegative = 0.0  # T5 pretrained with 1e-4
    label_smoothing: Probability = 0.0

    needs: ClassVar[tuple[str, ...]] = ("sentinel_ids",)
    skeletons: ClassVar[tuple[str, ...]] = ("encoder_decoder",)

    def lengths(self, length: int, target_length: int) -> tuple[int, int]:
        """Returns the row lengths; by default the decoder's fits the target of the longest text that the encoder can hold
        when corrupted: 512 -> 114 (from 568 tokens)."""
        return length, target_length or self.corrupted(self.capacity(length, length))[1]

    def noise(self, tokens: int) -> tuple[int, int]:
        """Returns the number of hidden tokens and of spans in a piece; at least one each, and one token stays."""
        hidden = min(max(round(tokens * self.noise_density), 1), tokens - 1)
        return hidden, min(max(round(hidden / self.mean_span), 1), tokens - hidden)

    def corrupted(self, tokens: int) -> tuple[int, int]:
        """Returns the lengths of the input and target made from a piece, both with end-of-text."""
        hidden, spans = self.noise(tokens)
        return tokens - hidden + spans + 1, hidden + spans + 1

    def capacity(self, length: int, target_length: int) -> int:
        """Returns the length of the longest piece with input and target that fit.

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

    def pack(self, offsets: np.ndarray, length: int, target_length: int, tokenizer: Any) -> Packing:
        capacity = self.capacity(length, target_length)
        spans, sentinels = self.noise(capacity)[1], len(tokenizer.sentinel_ids)
        if spans > sentinels:
            raise ConfigError(
                f"data.length={length}: a row has {spans} spans, but the vocabulary only {sentinels} sentinels;"
                f" shorten the rows or raise objective.mean_span."
            )
        plan = cut(offsets, capacity, SHORTEST)
        sizes = np.asarray([(0, 0), (0, 0), *map(self.corrupted, range(SHORTEST, capacity + 1))])
        return share_rows(plan, sizes[plan.length], (length, target_length))

    def make_example(self, records: Any, index: int, rng: np.random.Generator) -> dict:
        """Returns inputs (decoder_)input_ids, (decoder_)segment_ids, [T] and [U] int32; targets labels, weights [U]."""
        pairs = [self.corrupt(piece, records.tokenizer, rng) for piece in records.row(index)]
        sources, targets = zip(*pairs, strict=True)
        return encoder_decoder(sources, targets, records)

    def corrupt(self, tokens: np.ndarray, tokenizer: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Corrupts a piece into input and target, int32, of the lengths that `corrupted` gives.

        Kept and hidden spans alternate, starting with a kept one; their lengths are drawn.
        """
        hidden, spans = self.noise(len(tokens))
        lengths = _partition(len(tokens) - hidden, spans, rng), _partition(hidden, spans, rng)
        runs = np.split(tokens, np.cumsum(np.stack(lengths, axis=1).reshape(-1))[:-1])
        source, target = [], []
        for kept, told, sentinel in zip(runs[0::2], runs[1::2], tokenizer.sentinel_ids, strict=False):
            source += [kept, [sentinel]]
            target += [[sentinel], told]
        eos = [tokenizer.eos_id]
        return np.concatenate([*source, eos]).astype(np.int32), np.concatenate([*target, eos]).astype(np.int32)


def _partition(items: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Divides `items` into that many non-empty parts, [parts] int64, each division equally likely."""
    edges = np.sort(rng.choice(items - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], edges, [items]]))
