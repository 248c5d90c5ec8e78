import json

import numpy as np


def pairs_of(example, tokenizer):
    """(source, target) texts of a row, and the ids of each target."""
    inputs = example["inputs"]
    labels = example["targets"]["labels"]
    for number in range(1, inputs["segment_ids"].max() + 1):
        source = inputs["input_ids"][inputs["segment_ids"] == number]
        target = labels[inputs["decoder_segment_ids"] == number]
        assert source[-1] == target[-1] == tokenizer.eos_id
        yield tokenizer.decode(source), tokenizer.decode(target)


def test_every_pair_once_and_together(create, records_of, generator, small_text):
    objective = create("seq2seq")
    records = records_of(objective, length=512, target_length=96)
    found = []
    for row in range(len(records)):
        found.extend(pairs_of(objective.make_example(records, row, generator()), records.tokenizer))
    lines = map(json.loads, (small_text / "text.jsonl").read_text().splitlines())
    written = {(line["source"], line["target"]) for line in lines}
    assert set(found) <= written and len(found) > len(records)
    assert 45 <= len(found) < 60, "the others are held out"


def test_long_sides_lose_their_end(create, records_of):
    objective = create("seq2seq")
    texts = []
    cut = []
    for pairs, sizes in ((texts, (512, 96)), (cut, (20, 10))):
        rows = records_of(objective, length=sizes[0], target_length=sizes[1])
        for row in range(len(rows)):
            pairs += pairs_of(objective.make_example(rows, row, None), rows.tokenizer)
    for (source, target), (short_source, short_target) in zip(texts, cut, strict=True):
        assert source.startswith(short_source.rstrip("\ufffd"))
        assert target.startswith(short_target.rstrip("\ufffd"))
        assert len(short_source.encode()) >= min(19, len(source.encode()))


def test_target_length_is_the_source_length_unless_said(create):
    assert create("seq2seq").lengths(64, 0) == (64, 64)
    assert create("seq2seq").lengths(64, 16) == (64, 16)


def test_decoder_starts_each_target_with_padding(create, records_of, generator):
    objective = create("seq2seq")
    records = records_of(objective)
    inputs = objective.make_example(records, 0, generator())["inputs"]
    starts = np.flatnonzero(np.diff(inputs["decoder_segment_ids"], prepend=0) == 1)
    assert len(starts) and (inputs["decoder_input_ids"][starts] == records.tokenizer.pad_id).all()
