import numpy as np


def test_every_token_is_predicted_once_from_its_own_document(create, records_of, generator):
    objective = create("causal_lm")
    records = records_of(objective)
    predicted = []
    for row in range(len(records)):
        example = objective.make_example(records, row, generator())
        inputs, targets = example["inputs"], example["targets"]
        segments, counts = inputs["segment_ids"], targets["weights"] > 0
        np.testing.assert_array_equal(targets["labels"][:-1][counts[:-1]], inputs["input_ids"][1:][counts[:-1]])
        np.testing.assert_array_equal(segments[1:][counts[:-1]], segments[:-1][counts[:-1]])
        predicted.extend(targets["labels"][counts].tolist())
    documents = records.document.max() + 1
    assert len(predicted) == len(records.ids) - documents
    assert predicted.count(records.tokenizer.eos_id) == documents, "the end of each document is predicted"


def test_no_label_is_of_the_next_document(create, records_of, generator):
    objective = create("causal_lm")
    records = records_of(objective)
    eos, crossings = records.tokenizer.eos_id, 0
    for row in range(len(records)):
        example = objective.make_example(records, row, generator())
        ends = example["inputs"]["input_ids"] == eos
        crossings += ends.sum()
        assert not example["targets"]["weights"][ends].any()
    assert crossings > 20
