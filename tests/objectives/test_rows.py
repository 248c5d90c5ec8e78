import types

import numpy as np

from flaxformer_lite.objectives.rows import encoder_decoder

A = np.array([5, 6, 7])
B = np.array([8, 9])


def test_encoder_decoder_shifts_within_each_target():
    padding = types.SimpleNamespace(pad_id=0)
    records = types.SimpleNamespace(length=6, target_length=7, tokenizer=padding)
    example = encoder_decoder([A, B], [B, A], records)
    assert example["inputs"]["input_ids"].tolist() == [5, 6, 7, 8, 9, 0]
    assert example["targets"]["labels"].tolist() == [8, 9, 5, 6, 7, 0, 0]
    assert example["inputs"]["decoder_input_ids"].tolist() == [0, 8, 0, 5, 6, 0, 0]
    assert example["inputs"]["decoder_segment_ids"].tolist() == [1, 1, 2, 2, 2, 0, 0]
    assert example["targets"]["weights"].tolist() == [1, 1, 1, 1, 1, 0, 0]
