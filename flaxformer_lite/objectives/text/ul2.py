"""UL2's mixture of denoisers, each kind with its own mode token.

Spans are short, long, many, or one at the end.

Reference: Tay et al. 2022, "UL2: Unifying Language Learning Paradigms", section 3.1, table 1
(arXiv:2205.05131).
"""

from dataclasses import dataclass

import numpy as np

from flaxformer_lite.config.rules import MAX_INT32, NotNegative, Probability
from flaxformer_lite.objectives.rows import Tokenizer
from flaxformer_lite.objectives.text.denoising import Denoising
from flaxformer_lite.objectives.text.span_corruption import SpanCorruption

MODES = ("R", "S", "X")
DENOISERS = (  # each is drawn equally often
    ("R", SpanCorruption(mean_span=3, noise_density=0.15)),
    ("R", SpanCorruption(mean_span=8, noise_density=0.15)),
    # one span, which is at the end, as a kept one comes first
    ("S", SpanCorruption(mean_span=MAX_INT32, noise_density=0.25)),
    ("X", SpanCorruption(mean_span=3, noise_density=0.5)),
    ("X", SpanCorruption(mean_span=8, noise_density=0.5)),
    ("X", SpanCorruption(mean_span=64, noise_density=0.15)),
    ("X", SpanCorruption(mean_span=64, noise_density=0.5)),
)


@dataclass(frozen=True, kw_only=True)
class Ul2(Denoising):
    """Corrupts each piece by a denoiser drawn anew each time; the first token marks its kind.

    R is T5's span corruption; S, sequential, hides the last quarter, as prefix language modeling
    does; X, extreme, hides long spans, many tokens, or both. Rows have room for whichever is drawn,
    so nothing is cut off, but R leaves more than half of the decoder's row empty.

    T5's vocabulary has no mode tokens: R, S and X are its last three sentinels (<extra_id_99>, 98
    and 97), which no text uses then. UL2's own checkpoints spell them as text, "[NLU]", "[S2S]" and
    "[NLG]", so these differ.
    """

    mode_tokens: bool = True  # False: the same mixture, without telling the model
    z_loss: NotNegative = 0.0
    label_smoothing: Probability = 0.0

    def corrupted(self, tokens: int) -> tuple[int, int]:
        sources, targets = zip(
            *(denoiser.corrupted(tokens) for _, denoiser in DENOISERS), strict=True
        )
        return max(sources) + self.mode_tokens, max(targets)

    def sentinels(self, tokens: int) -> int:
        most = max(denoiser.sentinels(tokens) for _, denoiser in DENOISERS)
        return most + len(MODES) * self.mode_tokens

    def corrupt(
        self, tokens: np.ndarray, tokenizer: Tokenizer, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        mode, denoiser = DENOISERS[rng.integers(len(DENOISERS))]
        source, target = denoiser.corrupt(tokens, tokenizer, rng)
        if self.mode_tokens:
            source = np.insert(source, 0, tokenizer.sentinel_ids[-1 - MODES.index(mode)])
        return source, target
