"""Writing for many prompts in batches of one shape."""

import types

import numpy as np
import pytest

from flaxformer_lite.inference import writer
from flaxformer_lite.models import build_model, llama


@pytest.mark.parametrize("count, batches", [(2, [2]), (16, [16]), (19, [16, 16])])
def test_only_a_last_batch_is_filled_up_with_copies(monkeypatch, count, batches):
    rows = []

    def generate(model, params, ids, mask, **options):
        rows.append(len(ids))
        lengths = np.ones(len(ids), int)
        return types.SimpleNamespace(sequences=np.asarray(ids), lengths=lengths)

    monkeypatch.setattr(writer, "generate", generate)
    tokenizer = types.SimpleNamespace(pad_id=0, vocab_size=64)
    model = build_model(llama.config("tiny", vocab_size=64))
    write = writer.make_writer(model, {}, tokenizer)
    written = write([[n + 1] for n in range(count)], width=1, max_new_tokens=1)
    assert rows == batches
    assert written == [[n + 1] for n in range(count)]
