"""RoPE: queries and keys turn by angles in proportion to their position, so that their product sees the difference."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from flaxformer_lite.functions import rotary
from flaxformer_lite.positions.encoding import Encoding

LAYOUTS = ("halves", "interleaved")
SCALINGS = ("none", "linear", "ntk", "yarn", "llama3")


@dataclass(frozen=True, kw_only=True)
class Rope(Encoding):
    """Pair p turns by `position * base^(-2p / d)`, d the rotated dimensions; `scaling` stretches this to longer text.

    The fields after `scaling` carry the names they have in published `rope_scaling` entries.

    Reference: Su et al. 2021, section 3.2 (arXiv:2104.09864). Scalings: linear, Chen et al. 2023 (arXiv:2306.15595);
      ntk and yarn, Peng et al. 2023 (arXiv:2309.00071), section 3; llama3, Grattafiori et al. 2024 (arXiv:2407.21783).
    """

    base: float = 10000.0
    fraction: float = 1.0  # of the head that turns; the rest keeps no position (GPT-NeoX, GPT-J)
    layout: str = "halves"  # pairs (p, p + d/2), as Llama's published weights; or interleaved: (2p, 2p + 1), as GPT-J's
    values: bool = False  # whether values turn too (RoFormer's `rotary_value`)

    scaling: str = "none"  # linear, ntk, yarn, llama3
    factor: float = 1.0  # longer text / original text
    original_max_position_embeddings: int = 0  # the length trained on; yarn and llama3 need it
    low_freq_factor: float = 1.0  # llama3: turns over the original length, below which a frequency is divided by factor
    high_freq_factor: float = 4.0  # llama3: and above which it is left alone
    beta_fast: float = 32.0  # yarn: turns over the original length, above which a frequency is left alone
    beta_slow: float = 1.0  # yarn: and below which it is divided by factor
    truncate: bool = True  # yarn: round the ramp's ends to whole dimensions
    attention_factor: float = 0.0  # yarn: amplitude of sines and cosines; 0: from factor and the two below
    mscale: float = 0.0
    mscale_all_dim: float = 0.0

    def __post_init__(self):
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout={self.layout!r}: choose from {', '.join(LAYOUTS)}.")
        if self.scaling not in SCALINGS:
            raise ValueError(f"scaling={self.scaling!r}: choose from {', '.join(SCALINGS)}.")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction}: the part of a head that turns, in (0, 1].")
        if self.factor < 1:
            raise ValueError(f"factor={self.factor}: longer length over original length, at least 1.")
        if self.scaling in ("yarn", "llama3") and self.original_max_position_embeddings < 1:
            raise ValueError(f"scaling={self.scaling!r} needs original_max_position_embeddings, the length trained on.")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor={self.low_freq_factor}, high_freq_factor={self.high_freq_factor}: low"
                f" must be below high."
            )

    def tables(self, *, d_model, num_heads, head_dim, max_length):
        self.rotated(head_dim)
        return {}

    def phase(self, positions_BT, head_dim):
        phase = rotary.phase(
            positions_BT,
            self.frequencies(head_dim),
            amplitude=self.amplitude(),
            interleaved=self.layout == "interleaved",
        )
        return dataclasses.replace(phase, values=self.values)

    def rotated(self, head_dim: int) -> int:
        """d, the dimensions of a head that turn.

        Raises:
          ValueError: d is odd or too small.
        """
        d = int(head_dim * self.fraction + 1e-9)  # 44 * (30 / 44) is a little less than 30
        if d < 2 or d % 2:
            raise ValueError(
                f"head_dim={head_dim}, fraction={self.fraction}: rotary positions turn pairs, and {d}"
                f" dimensions are not pairs; try fraction={max(2, d // 2 * 2) / head_dim}."
            )
        return d

    def frequencies(self, head_dim: int) -> np.ndarray:
        """Radians a position of each pair, float64 [d / 2], fastest first."""
        d = self.rotated(head_dim)
        base = self.base * self.factor ** (d / (d - 2)) if self.scaling == "ntk" and d > 2 else self.base
        plain = base ** (-np.arange(0, d, 2) / d)
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == "llama3":
            turns = self.original_max_position_embeddings * plain / (2 * math.pi)
            kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        elif self.scaling == "yarn":
            kept = 1 - self._yarn_ramp(d)
        else:
            return plain
        kept = np.clip(kept, 0, 1)
        return kept * plain + (1 - kept) * plain / self.factor

    def amplitude(self) -> float:
        """What sines and cosines are multiplied by: yarn's attention factor, else one."""
        if self.scaling != "yarn":
            return 1.0
        if self.attention_factor:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)
        return self._mscale(1.0)

    def _mscale(self, weight: float) -> float:
        return 0.1 * weight * math.log(self.factor) + 1

    def _yarn_ramp(self, d: int) -> np.ndarray:
        """Up to 0 for pairs with more than beta_fast turns over the original length, 1 and more below beta_slow."""
        low, high = (self._pair_that_turns(beta, d) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        return (np.arange(d // 2) - low) / max(high - low, 1e-3)

    def _pair_that_turns(self, turns: float, d: int) -> float:
        """The (fractional) pair whose angle makes so many turns over the original length."""
        return d * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(self.base))
