"""No encoding: a causal decoder can infer positions from what it may not see.

Reference: Kazemnejad et al. 2023, The Impact of Positional Encoding on Length Generalization
(arXiv:2305.19466).
"""

from dataclasses import dataclass

from flaxformer_lite.nn.positions.encoding import Encoding


@dataclass(frozen=True, kw_only=True)
class Nope(Encoding):
    """No position encoding: all hooks do nothing."""
