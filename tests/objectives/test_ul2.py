import collections

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.rows import row_ids
from flaxformer_lite.objectives.text.ul2 import Ul2
from flaxformer_lite.text.tokenizer import Bytes
from tests.objectives.test_span_corruption import reconstruct
from tests.training import tiny_runs

TEXT = np.arange(6, 206)  # 200 ids of text
# Hidden tokens and spans of 200 by table 1, by mode: (mean length, rate) of each denoiser.
TABLE = {"R": {(30, 10), (30, 4)}, "S": {(50, 1)}, "X": {(100, 33), (100, 12), (30, 1), (100, 2)}}


def drawn(objective, generator, times=2100):
    """Returns (mode or the first token of the text, source, target) of many corruptions of one
    text."""
    tokenizer = Bytes()
    names = dict(zip(tokenizer.sentinel_ids[::-1], "RSX", strict=False))
    pairs = [objective.corrupt(TEXT, tokenizer, generator(n)) for n in range(times)]
    return [(names.get(source[0]), source, target) for source, target in pairs]


def test_denoisers_are_those_of_the_paper_and_drawn_equally_often(create, generator):
    sentinels = set(Bytes().sentinel_ids)
    seen = collections.Counter()
    for mode, _, target in drawn(create("ul2"), generator):
        spans = sum(token in sentinels for token in target)
        seen[mode, (len(target) - 1 - spans, spans)] += 1
    assert set(seen) == {(mode, size) for mode, sizes in TABLE.items() for size in sizes}
    assert min(seen.values()) > 240 and max(seen.values()) < 360, "300 of each"


def test_the_sequential_denoiser_hides_the_end(create, generator):
    made = drawn(create("ul2"), generator, 200)
    of_mode = [(source, target) for mode, source, target in made if mode == "S"]
    assert len(of_mode) > 10
    for source, target in of_mode:
        assert source[1:-2].tolist() == TEXT[:150].tolist()
        assert target[1:-1].tolist() == TEXT[150:].tolist()


@pytest.mark.parametrize("mode_tokens", [True, False])
def test_input_and_target_together_are_the_text_and_nothing_is_left_out(
    create, records_of, generator, mode_tokens
):
    objective = create("ul2", mode_tokens=mode_tokens)
    records = records_of(objective)
    kept = 0
    modes = set()
    for row in range(len(records)):
        example = objective.make_example(records, row, generator(row))
        inputs = example["inputs"]
        labels = example["targets"]["labels"]
        pieces = row_ids(records, row)
        assert inputs["segment_ids"].max() == inputs["decoder_segment_ids"].max() == len(pieces)
        for number, piece in enumerate(pieces, start=1):
            source = inputs["input_ids"][inputs["segment_ids"] == number]
            target = labels[inputs["decoder_segment_ids"] == number]
            modes |= {int(source[0])} & set(records.tokenizer.sentinel_ids)
            text = reconstruct(source[int(mode_tokens) :], target, records.tokenizer)
            assert text == piece.tolist()
            kept += len(piece)
    assert modes == (set(records.tokenizer.sentinel_ids[-3:]) if mode_tokens else set())
    assert 0.99 * (len(records.ids) - records.plan.document.max() - 1) < kept


def test_no_corruption_is_longer_than_planned(create, generator):
    objective = create("ul2")
    rng = generator(0)
    longest = np.zeros((121, 2), int)
    for tokens in [n for n in range(2, 121) for _ in range(60)]:
        sizes = [len(x) for x in objective.corrupt(np.arange(6, 6 + tokens), Bytes(), rng)]
        longest[tokens] = np.maximum(longest[tokens], sizes)
    planned = np.asarray([objective.corrupted(tokens) for tokens in range(2, 121)])
    assert (longest[2:] <= planned).all()
    assert (longest[2:] == planned).mean() > 0.99, "and no longer than needed"


def test_mode_tokens_are_never_sentinels_of_a_span(create, records_of):
    assert create("ul2").sentinels(585) == 97 + 3
    message = r"length=600: a row has 11\d.*vocabulary.*100 sentinels; sho"
    with pytest.raises(ConfigError, match=message):
        records_of(create("ul2"), length=600)


@pytest.mark.nightly
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(tmp_path):
    assert tiny_runs.resumes_exactly(tiny_runs.config(tmp_path, "t5", objective=Ul2()), tmp_path)
