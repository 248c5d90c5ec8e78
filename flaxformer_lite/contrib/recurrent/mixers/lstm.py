"""The LSTM layer: `lstm_step` of cells.py over time.

In encoders it reads in both directions.
"""

from dataclasses import dataclass
from typing import ClassVar

from flaxformer_lite.contrib.recurrent.cells import lstm_step
from flaxformer_lite.contrib.recurrent.layer import RecurrentConfig


@dataclass(frozen=True, kw_only=True)
class LstmConfig(RecurrentConfig):
    """The record of the LSTM layer; its options are those of RecurrentConfig.

    Reference: Hochreiter and Schmidhuber 1997; Zaremba et al. 2014 (arXiv:1409.2329) for stacks of
    layers.
    """

    name: ClassVar[str] = "lstm"

    gates = 4
    states = 2
    biases = (0.0, 1.0, 0.0, 0.0)  # a forget gate that starts open (Jozefowicz et al. 2015)
    step = staticmethod(lstm_step)
