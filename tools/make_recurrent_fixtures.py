"""Writes tests/contrib/recurrent/torch_recurrent.npz: what torch's RNN, LSTM and GRU compute, both
ways over padded rows.

    # in the environment of tools/make_fixtures.py
    /tmp/reference/bin/python tools/make_recurrent_fixtures.py

For each: the input, the lengths of the rows, the weights by torch's names, the outputs, the states
  at the end, and the
gradients of the sum of the sines of the outputs.
"""

from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

OUT = Path(__file__).parents[1] / "tests" / "contrib" / "recurrent" / "torch_recurrent.npz"
CELLS = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
B = 3
T = 7
D = 5
U = 4


def main() -> None:
    torch.manual_seed(0)
    arrays: dict[str, torch.Tensor] = {
        "x": torch.randn(B, T, D),
        "lengths": torch.tensor([7, 4, 1]),
    }
    for name, kind in CELLS.items():
        layer = kind(D, U, batch_first=True, bidirectional=True)
        x = arrays["x"].clone().requires_grad_()
        packed, last = layer(
            pack_padded_sequence(x, arrays["lengths"], batch_first=True, enforce_sorted=False)
        )
        y, _ = pad_packed_sequence(packed, batch_first=True)
        torch.sin(y).sum().backward()
        states = last if isinstance(last, tuple) else (last,)
        found = {"y": y, "grad/x": x.grad, **{f"state{i}": state for i, state in enumerate(states)}}
        for weight, value in layer.named_parameters():
            found |= {weight: value, f"grad/{weight}": value.grad}
        arrays |= {f"{name}/{key}": value for key, value in found.items()}
    np.savez_compressed(OUT, **{key: value.detach().numpy() for key, value in arrays.items()})


if __name__ == "__main__":
    main()
