"""The GRU layer: `gru_step` of cells.py over time; both ways in encoders."""

from dataclasses import dataclass
from typing import ClassVar

from flaxformer_lite.contrib.recurrent.cells import gru_step
from flaxformer_lite.contrib.recurrent.layer import RecurrentConfig


@dataclass(frozen=True, kw_only=True)
class GruConfig(RecurrentConfig):
    """The record of the GRU layer; its options are those of RecurrentConfig.

    Reference: Cho et al. 2014 (arXiv:1406.1078).
    """

    name: ClassVar[str] = "gru"

    gates = 3
    biases = (0.0,) * 4  # the last is the candidate's own, see gru_step
    step = staticmethod(gru_step)
