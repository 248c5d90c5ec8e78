"""RoPE: rotates queries and keys in proportion to their position.

Their product then depends on the distance.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config.rules import MAX_FLOAT32, Count, NotNegative, OneOf, Positive, Range
from flaxformer_lite.nn.functions import rotary
from flaxformer_lite.nn.positions.encoding import Encoding, Table

Layout = Annotated[str, OneOf(("halves", "interleaved"))]
Scaling = Annotated[
    str,
    OneOf(("none", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "proportional")),
]
Rotated = Annotated[float, Range(1e-9, 1, "be in (0, 1], the rotated share of a head")]
Factor = Annotated[float, Range(1, MAX_FLOAT32, "be at least 1, longer over original length")]
BY_LENGTH = ("dynamic", "longrope")  # scalings that depend on the length of the text


@dataclass(frozen=True, kw_only=True)
class Rope(Encoding):
    """Rotates pair p by `position * base^(-2p / d)`, d the rotated dimensions.

    `scaling` stretches this to longer text.

    The fields after `scaling` have the same names as in published `rope_scaling` entries.

    With `proportional` d is the whole head, and `fraction` the share of its pairs that turn, the
    fastest ones; the others pair the dimensions behind them (Gemma 4).

    With `dynamic` and `longrope` frequencies depend on the longest row of a call, 1 + the largest
    position in it: text up to the original length is rotated as in training. A cache keeps keys as
    they were rotated when they were written.

    Reference: Su et al. 2021, section 3.2 (arXiv:2104.09864). Scalings: linear, Chen et al. 2023
    (arXiv:2306.15595); ntk, dynamic and yarn, Peng et al. 2023 (arXiv:2309.00071), section 3 and
    appendix B.2; llama3, Grattafiori et al. 2024 (arXiv:2407.21783); longrope, Ding et al. 2024
    (arXiv:2402.13753), section 3.
    """

    base: Positive = 10000.0
    # share of the head that rotates; the rest has no position (GPT-NeoX, GPT-J)
    fraction: Rotated = 1.0
    # pairs (p, p + d/2), as Llama's published weights; or interleaved: (2p, 2p + 1), as GPT-J's
    layout: Layout = "halves"
    values: bool = False  # whether values rotate too (RoFormer's `rotary_value`)
    # whether unscaled frequencies are rounded to float16, as ESM-2 was trained
    float16_frequencies: bool = False

    # queries grow by 1 + this * log(1 + whole original lengths before them) (Ministral 3)
    query_growth: NotNegative = 0.0

    scaling: Scaling = "none"
    factor: Factor = 1.0  # longer length / original length
    # the length trained on; dynamic, yarn, llama3 and longrope need it
    original_max_position_embeddings: Count = 0
    # llama3: below this many turns over the original length, it is divided by factor
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0  # llama3: above this many, it is left alone
    # yarn: above this many turns over the original length, a frequency is left alone
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0  # yarn: below this many, it is divided by factor
    truncate: bool = True  # yarn: round the ramp's ends to whole dimensions
    # yarn, longrope: amplitude of sines and cosines; 0: from factor and the two below
    attention_factor: float = 0.0
    mscale: float = 0.0  # yarn
    mscale_all_dim: float = 0.0
    # longrope: divisors of each pair's frequency, up to the original length
    short_factor: tuple[Positive, ...] = ()
    long_factor: tuple[Positive, ...] = ()  # longrope: the same, beyond it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor={self.low_freq_factor}, high_freq_factor={self.high_freq_factor}:"
                " low must be below high."
            )
        if self.float16_frequencies and self.scaling != "none":
            raise ValueError(
                f"scaling={self.scaling!r}, float16_frequencies=True: only unscaled frequencies are"
                " rounded; set one of the two."
            )
        if self.scaling in ("yarn", "llama3", *BY_LENGTH) or self.query_growth:
            self._check_original()
        if self.scaling == "longrope" and not (self.short_factor and self.long_factor):
            raise ValueError(
                "scaling='longrope' needs short_factor and long_factor, one number per pair."
            )

    def _check_original(self) -> None:
        if self.original_max_position_embeddings < 1:
            raise ValueError(
                f"scaling={self.scaling!r} needs original_max_position_embeddings, the length"
                " trained on."
            )
        if self.scaling == "yarn" and self.base == 1:
            raise ValueError(
                "base=1.0: all pairs would rotate alike, and yarn ranks them by frequency; take"
                " another."
            )
        if self.scaling == "longrope" and self.original_max_position_embeddings == 1:
            raise ValueError(
                "original_max_position_embeddings=1: longrope divides by its logarithm; needs 2 or"
                " more."
            )

    def tables(
        self, *, d_model: int, num_heads: int, head_dim: int, max_length: int
    ) -> dict[str, Table]:
        self.rotated(head_dim)
        return {}

    def phase(self, positions_BT: jax.Array, head_dim: int) -> rotary.Phase:
        length = jnp.max(positions_BT) + 1 if self.scaling in BY_LENGTH else None
        frequencies = self.frequencies(head_dim, length)
        interleaved = self.layout == "interleaved"
        phase = rotary.phase(
            positions_BT, frequencies, amplitude=self.amplitude(), interleaved=interleaved
        )
        growth_BT = None
        if self.query_growth:
            lengths_BT = positions_BT // self.original_max_position_embeddings
            growth_BT = 1 + self.query_growth * jnp.log1p(lengths_BT.astype(jnp.float32))
        return dataclasses.replace(phase, values=self.values, query_scale_BT=growth_BT)

    def rotated(self, head_dim: int) -> int:
        """Returns d, the number of dimensions of a head that rotate.

        Raises:
          ValueError: d is odd or too small, or longrope does not have one factor per pair.
        """
        if self.scaling == "proportional":  # transformers rounds down, also to none
            return 2 * int(head_dim * self.fraction // 2)
        d = int(head_dim * self.fraction + 1e-9)  # 44 * (30 / 44) is a little less than 30
        if d < 2 or d % 2:
            raise ValueError(
                f"head_dim={head_dim}, fraction={self.fraction}: rotary positions rotate pairs, and"
                f" {d} dimensions are not pairs; try fraction={max(2, d // 2 * 2) / head_dim}."
            )
        if self.scaling == "dynamic" and d < 4:
            raise ValueError(
                f"head_dim={head_dim}, fraction={self.fraction}: dynamic scaling needs 4 or more"
                " rotated dimensions."
            )
        if self.scaling == "longrope":
            self._check_factors("short_factor", d // 2)
            self._check_factors("long_factor", d // 2)
        return d

    def _check_factors(self, name: str, pairs: int) -> None:
        count = len(getattr(self, name))
        if count != pairs:
            raise ValueError(f"{name} has {count} numbers: needs one for each of {pairs} pairs.")

    def frequencies(
        self, head_dim: int, length: jax.Array | int | None = None
    ) -> np.ndarray | jax.Array:
        """Computes radians per position of each pair, [d / 2], fastest first.

        The dtype is float64, or float32 if traced.

        Args:
          head_dim: H.
          length: length of the text, for scalings that depend on it; None is at most the original
            length.
        """
        d = self.rotated(head_dim)
        if self.scaling == "proportional":
            turning = self.base ** (-np.arange(0, d, 2) / head_dim) / self.factor
            return np.pad(turning, (0, head_dim // 2 - d // 2))
        plain = self._base(d, length) ** (-np.arange(0, d, 2) / d)
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == "longrope":
            short = np.asarray(self.short_factor)
            long = np.asarray(self.long_factor)
            within = length is None or length <= self.original_max_position_embeddings
            if within is True:
                return plain / short
            return plain / jnp.where(within, short, long)
        if self.scaling == "llama3":
            turns = self.original_max_position_embeddings * plain / (2 * math.pi)
            kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        elif self.scaling == "yarn":
            kept = 1 - self._yarn_ramp(d)
        elif self.float16_frequencies:
            return plain.astype(np.float16).astype(np.float64)
        else:
            return plain
        kept = np.clip(kept, 0, 1)
        return kept * plain + (1 - kept) * plain / self.factor

    def _base(self, d: int, length: jax.Array | int | None) -> jax.Array | float:
        """Returns the base, raised for longer text.

        The slowest pair then rotates as far over the longer text as over the original length.
        """
        if self.scaling == "ntk" and d > 2:
            return self.base * self.factor ** (d / (d - 2))
        if self.scaling == "dynamic" and length is not None:
            longer = jnp.maximum(length / self.original_max_position_embeddings, 1.0)
            return self.base * (self.factor * longer - (self.factor - 1)) ** (d / (d - 2))
        return self.base

    def amplitude(self) -> float:
        """Returns the factor on sines and cosines.

        It is the attention factor of yarn and longrope, else one.
        """
        if self.scaling not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor:
            return self.attention_factor
        if self.scaling == "longrope":
            return math.sqrt(
                1 + math.log(self.factor) / math.log(self.original_max_position_embeddings)
            )
        if self.mscale and self.mscale_all_dim:
            return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)
        return self._mscale(1.0)

    def _mscale(self, weight: float) -> float:
        # YaRN's fit of the temperature (section 3.4).
        return 0.1 * weight * math.log(self.factor) + 1

    def _yarn_ramp(self, d: int) -> np.ndarray:
        """Returns a ramp over pairs.

        It is <= 0 above beta_fast turns over the original length, and >= 1 below beta_slow.
        """
        low = self._pair_that_turns(self.beta_fast, d)
        high = self._pair_that_turns(self.beta_slow, d)
        if self.truncate:
            low = math.floor(low)
            high = math.ceil(high)
        low = max(low, 0)
        high = min(high, d - 1)
        # 1e-3 as in YaRN's own code, against a division by zero.
        return (np.arange(d // 2) - low) / (high - low or 1e-3)

    def _pair_that_turns(self, turns: float, d: int) -> float:
        """Returns the (fractional) pair that makes this many turns over the original length."""
        return (
            d
            * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi))
            / (2 * math.log(self.base))
        )
