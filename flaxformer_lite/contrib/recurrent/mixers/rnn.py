"""The simple recurrent layer: `rnn_step` of cells.py over time.

Encoders run it in both directions.
"""

from dataclasses import dataclass
from typing import ClassVar

from flaxformer_lite.contrib.recurrent.cells import rnn_step
from flaxformer_lite.contrib.recurrent.layer import RecurrentConfig


@dataclass(frozen=True, kw_only=True)
class RnnConfig(RecurrentConfig):
    """The record of the simple recurrent layer; its options are those of RecurrentConfig.

    Reference: Elman 1990, "Finding Structure in Time".
    """

    name: ClassVar[str] = "rnn"

    gates = 1
    biases = (0.0,)
    step = staticmethod(rnn_step)
