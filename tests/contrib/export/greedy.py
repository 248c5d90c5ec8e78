"""Greedy generation by the programs of an export alone."""

import numpy as np

from flaxformer_lite.contrib.export.cases import Case, first_call, next_call, pad_texts


def greedy(programs, run, rows, steps, start=0):
    """Writes `steps` tokens for each row, int [B, steps].

    Args:
      programs: those of one model.
      run: (name of a program, inputs) -> outputs.
      rows: ids of prompts, or of the texts of an encoder-decoder.
      steps: how many tokens.
      start: the first token of an encoder-decoder's target.
    """
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
