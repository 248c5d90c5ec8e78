"""T5's span corruption.

Sentinels replace spans of text in the input, and the target spells these out.

Reference: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 3.1.4 and 3.3.4
(arXiv:1910.10683).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from flaxformer_lite.config.rules import MAX_INT32, NotNegative, Probability, Range, Share
from flaxformer_lite.objectives.rows import Tokenizer
from flaxformer_lite.objectives.text.denoising import Denoising

Span = Annotated[float, Range(1, MAX_INT32, "be at least one token")]


@dataclass(frozen=True, kw_only=True)
class SpanCorruption(Denoising):
    """Turns "Thank you for inviting me" into input "Thank <0> inviting me", target "<0> you for".

    Both end with the end-of-text token.

    The length of a piece determines its corruption's, so rows are planned exactly: 512 tokens
    of input are made from 568 of text, with a target of 114.
    """

    noise_density: Share = 0.15  # share of the tokens that are hidden
    mean_span: Span = 3.0  # tokens
    z_loss: NotNegative = 0.0  # T5 pretrained with 1e-4
    label_smoothing: Probability = 0.0

    fewer_spans = "shorten the rows or raise objective.mean_span"

    def noise(self, tokens: int) -> tuple[int, int]:
        """Returns the number of hidden tokens and of spans in a piece.

        There is at least one of each, and at least one token is kept.
        """
        hidden = min(max(round(tokens * self.noise_density), 1), tokens - 1)
        return hidden, min(max(round(hidden / self.mean_span), 1), tokens - hidden)

    def corrupted(self, tokens: int) -> tuple[int, int]:
        hidden, spans = self.noise(tokens)
        return tokens - hidden + spans + 1, hidden + spans + 1

    def sentinels(self, tokens: int) -> int:
        return self.noise(tokens)[1]

    def corrupt(
        self, tokens: np.ndarray, tokenizer: Tokenizer, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Corrupts a piece into input and target, int32, of the lengths that `corrupted` gives.

        Kept and hidden spans alternate, starting with a kept one; their lengths are drawn.
        """
        hidden, spans = self.noise(len(tokens))
        lengths = _partition(len(tokens) - hidden, spans, rng), _partition(hidden, spans, rng)
        runs = np.split(tokens, np.cumsum(np.stack(lengths, axis=1).reshape(-1))[:-1])
        source = []
        target = []
        for kept, hidden_run, sentinel in zip(
            runs[0::2], runs[1::2], tokenizer.sentinel_ids, strict=False
        ):
            source += [kept, [sentinel]]
            target += [[sentinel], hidden_run]
        eos = [tokenizer.eos_id]
        source_ids = np.concatenate([*source, eos]).astype(np.int32)
        target_ids = np.concatenate([*target, eos]).astype(np.int32)
        return source_ids, target_ids


def _partition(items: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Divides `items` into `parts` non-empty parts, [parts] int64, uniformly at random."""
    edges = np.sort(rng.choice(items - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], edges, [items]]))
