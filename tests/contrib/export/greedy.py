"""Greedy generation by the programs of an export alone."""

import numpy as np

from flaxformer_lite.contrib.export.cases import Case, first_call, next_call, pad_texts


def greedy(programs, run, rows, steps, start=0):
    """Writes `steps` tokens for each row of ids by `run`, (name of a program, inputs) -> outputs;
    the target of an encoder-decoder begins with `start`."""
    encoded = None
    if len(programs) == 2:
        inputs = pad_texts(programs[0], rows)
        encoded = Case("encode", inputs, run("encode", inputs))
    program = programs[-1]
    inputs = first_call(program, rows, encoded, start)
    written = []
    for _ in range(steps):
        case = Case("decode", inputs, run("decode", inputs))
        inputs = next_call(program, case)
        written.append(inputs["input_ids"][:, 0])
    return np.stack(written, axis=1)
