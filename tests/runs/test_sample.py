"""The sample of text that a decoder writes at evaluations."""

import types

import numpy as np

from flaxformer_lite.runs.callbacks.evaluation import choose_prompt


def test_the_prompt_is_the_half_example_of_the_most_usual_tokens():
    rows = np.asarray([[9, 8, 7, 6, 1, 1], [1, 2, 1, 5, 5, 5], [2, 3, 4, 1, 1, 1]])

    def example(row, seed, position):
        return {"inputs": {"input_ids": rows[row]}}

    data = types.SimpleNamespace(example=example, num_examples=len(rows))
    assert choose_prompt(data).tolist() == [1, 2, 1]
