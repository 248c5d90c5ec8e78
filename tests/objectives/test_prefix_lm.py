import numpy as np

from flaxformer_lite.objectives.rows import row_ids


def test_the_loss_is_on_the_rest_only(create, records_of, generator):
    objective = create("prefix_lm")
    plain = create("causal_lm")
    records = records_of(objective)
    for row in range(len(records)):
        example, whole = (o.make_example(records, row, generator(row)) for o in (objective, plain))
        prefix = example["inputs"]["prefix_mask"]
        segments = example["inputs"]["segment_ids"]
        weights = example["targets"]["weights"]
        np.testing.assert_array_equal(example["inputs"]["input_ids"], whole["inputs"]["input_ids"])
        np.testing.assert_array_equal(weights[:-1], whole["targets"]["weights"][:-1] * ~prefix[1:])
        assert not prefix[segments == 0].any()
        for number in range(1, segments.max() + 1):
            own = prefix[segments == number]
            assert (np.diff(own.astype(int)) <= 0).all(), "a prefix is the beginning"
            assert own[0] or len(own) == 1


def test_prefixes_are_of_all_lengths(create, records_of, generator):
    objective = create("prefix_lm")
    records = records_of(objective)
    row = next(r for r in range(len(records)) if list(map(len, row_ids(records, r))) == [49])
    made = (objective.make_example(records, row, generator(n)) for n in range(2000))
    lengths = [example["inputs"]["prefix_mask"].sum() for example in made]
    counts = np.bincount(lengths, minlength=49)[1:49]
    assert counts.min() > 15 and counts.max() < 80, "uniform in 1 .. 48: 42 of each"
