import types

import numpy as np

from flaxformer_lite.objectives.rows import encoder_decoder, fill_row, next_tokens

A = np.array([5, 6, 7])
B = np.array([8, 9])


def test_fill():
    ids, segments = fill_row([A, B], 7, pad=1)
    assert ids.tolist() == [5, 6, 7, 8, 9, 1, 1]
    assert segments.tolist() == [1, 1, 1, 2, 2, 0, 0]


def test_next_tokens():
    records = types.SimpleNamespace(length=6, tokenizer=types.SimpleNamespace(pad_id=1))
    inputs, targets = next_tokens([A, B], records).values()
    assert inputs["input_ids"].tolist() == [5, 6, 7, 8, 9, 1]
    assert inputs["segment_ids"].tolist() == [1, 1, 1, 2, 2, 0]
    assert targets["labels"].tolist() == [6, 7, 8, 9, 1, 1]
    assert targets["weights"].tolist() == [1, 1, 0, 1, 0, 0]


def test_encoder_decoder_shifts_within_each_target():
    records = types.SimpleNamespace(
        length=6, target_length=7, tokenizer=types.SimpleNamespace(pad_id=0)
    )
    example = encoder_decoder([A, B], [B, A], records)
    assert example["inputs"]["input_ids"].tolist() == [5, 6, 7, 8, 9, 0]
    assert example["targets"]["labels"].tolist() == [8, 9, 5, 6, 7, 0, 0]
    assert example["inputs"]["decoder_input_ids"].tolist() == [0, 8, 0, 5, 6, 0, 0]
    assert example["inputs"]["decoder_segment_ids"].tolist() == [1, 1, 2, 2, 2, 0, 0]
    assert example["targets"]["weights"].tolist() == [1, 1, 1, 1, 1, 0, 0]
