import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.rows import row_ids
from flaxformer_lite.text.tokenizer import Bytes


def reconstruct(source, target, tokenizer):
    """The text before corruption: each sentinel of the source is replaced by what follows it in the
    target."""
    sentinels = set(tokenizer.sentinel_ids)
    told = {}
    current = None
    for token in target[:-1]:
        if token in sentinels:
            current = told.setdefault(token, [])
        else:
            current.append(token)
    return [t for token in source[:-1] for t in (told[token] if token in sentinels else [token])]


@pytest.mark.parametrize("tokenizer", ["bytes", "byte_bpe", "sentencepiece"])
def test_input_and_target_together_are_the_text(create, records_of, generator, tokenizer):
    objective = create("span_corruption")
    records = records_of(objective, tokenizer=tokenizer)
    several = 0
    for row in range(len(records)):
        example = objective.make_example(records, row, generator(row))
        inputs = example["inputs"]
        labels = example["targets"]["labels"]
        pieces = row_ids(records, row)
        assert inputs["segment_ids"].max() == inputs["decoder_segment_ids"].max() == len(pieces)
        several += len(pieces) > 1
        for number, piece in enumerate(pieces, start=1):
            source = inputs["input_ids"][inputs["segment_ids"] == number]
            target = labels[inputs["decoder_segment_ids"] == number]
            assert source[-1] == target[-1] == records.tokenizer.eos_id
            assert reconstruct(source, target, records.tokenizer) == piece.tolist()
            used = [t for t in source if t in records.tokenizer.sentinel_ids]
            # in order, from the first
            assert used == list(records.tokenizer.sentinel_ids[: len(used)])
            assert source[0] == piece[0], "a kept span comes first"
    assert several > 3


def test_every_token_is_in_one_row(create, records_of, generator):
    objective = create("span_corruption")
    records = records_of(objective)
    kept = sum(len(piece) for row in range(len(records)) for piece in row_ids(records, row))
    documents = records.plan.document.max() + 1
    assert 0.99 * (len(records.ids) - documents) < kept <= len(records.ids) - documents


@pytest.mark.parametrize(
    "length, tokens, target", [(512, 568, 114), (128, 141, 29), (1024, 1137, 229)]
)
def test_lengths_are_those_of_t5(create, length, tokens, target):
    """512 -> 568 tokens and targets of 114 is what T5's own helper gives; the others follow its
    formula."""
    objective = create("span_corruption")
    assert objective.capacity(length, length) == tokens
    assert objective.lengths(length, 0) == (length, target)
    hidden = round(tokens * 0.15)
    spans = round(hidden / 3)
    assert objective.corrupted(tokens) == (tokens - hidden + spans + 1, hidden + spans + 1)


@pytest.mark.parametrize("density", [0.15, 0.5, 0.9])
@pytest.mark.parametrize("mean", [1.0, 3.0, 10.0])
def test_planned_lengths_are_the_lengths(create, generator, density, mean):

    objective = create("span_corruption", noise_density=density, mean_span=mean)
    rng = generator(0)
    for tokens in range(2, 100):
        source, target = objective.corrupt(np.arange(6, 6 + tokens), Bytes(), rng)
        assert (len(source), len(target)) == objective.corrupted(tokens)
        hidden, spans = objective.noise(tokens)
        assert 1 <= spans <= hidden < tokens and spans <= tokens - hidden


def test_a_given_target_length_shortens_the_pieces(create, records_of):
    objective = create("span_corruption")
    records = records_of(objective, target_length=8)
    assert records.target_length == 8
    assert max(objective.corrupted(int(n))[1] for n in records.plan.length) <= 8


def test_spans_are_drawn_anew_and_everywhere(create, generator):

    objective = create("span_corruption")
    tokenizer = Bytes()
    text = np.arange(6, 106)
    hidden = np.zeros(100)
    for n in range(3000):
        _, target = objective.corrupt(text, tokenizer, generator(n))
        told = target[(target >= 6) & (target < 106)]
        hidden[told - 6] += 1
    assert hidden[0] == 0 and hidden.sum() == 3000 * 15
    rates = hidden[10:80] / 3000
    assert rates.min() > 0.1 and rates.max() < 0.2
    # less than the rate, because the last token is always hidden
    assert rates.mean() == pytest.approx(0.15, abs=0.025)


@pytest.mark.parametrize(
    ("options", "length", "message"),
    [
        ({"noise_density": 1.5}, 64, r"noise_density=1\.5:.*strictly.*0 and 1"),
        ({"mean_span": 0.5}, 64, r"mean_span=0\.5:.*least"),
        ({}, 3, r"length=3, data\.target_length=3:.*short.*least.*5"),
        (
            {"mean_span": 1.0, "noise_density": 0.2},
            600,
            r"data\.length=600: a row has 1\d\d.*vocabulary.*100 sentinels",
        ),
    ],
)
def test_what_cannot_work(create, records_of, options, length, message):
    with pytest.raises(ConfigError, match=message):
        records_of(create("span_corruption", **options), length=length)
