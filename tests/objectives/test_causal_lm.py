import numpy as np
import pytest


def test_every_token_is_predicted_once_from_its_own_document(create, records_of, generator):
    objective = create("causal_lm")
    records = records_of(objective)
    eos = records.tokenizer.eos_id
    predicted = []
    crossings = 0
    for row in range(len(records)):
        example = objective.make_example(records, row, generator())
        inputs = example["inputs"]
        targets = example["targets"]
        segments = inputs["segment_ids"]
        counts = targets["weights"] > 0
        np.testing.assert_array_equal(
            targets["labels"][:-1][counts[:-1]], inputs["input_ids"][1:][counts[:-1]]
        )
        np.testing.assert_array_equal(segments[1:][counts[:-1]], segments[:-1][counts[:-1]])
        predicted.extend(targets["labels"][counts].tolist())
        ends = inputs["input_ids"] == eos
        crossings += ends.sum()
        assert not targets["weights"][ends].any(), "no label is of the next document"
    documents = records.plan.document.max() + 1
    assert crossings > 20 and len(predicted) == len(records.ids) - documents
    assert predicted.count(eos) == documents, "the end of each document is predicted"


def test_joined_documents_are_one_text_of_which_every_token_is_a_label(
    create, records_of, generator
):
    joined = create("causal_lm", documents="joined")
    apart = create("causal_lm")
    records = records_of(joined)
    count = range(len(records))
    rows = [[of.make_example(records, i, generator()) for i in count] for of in (joined, apart)]
    predicted = [row["targets"]["labels"][row["targets"]["weights"] > 0] for row in rows[0]]
    np.testing.assert_array_equal(np.concatenate(predicted), records.ids[1:])
    for one, other in zip(*rows, strict=True):
        assert list(one["inputs"]) == ["input_ids"]
        np.testing.assert_array_equal(one["inputs"]["input_ids"], other["inputs"]["input_ids"])
    with pytest.raises(ValueError, match=r"documents='mixed': no 'mixed';.*choose.*joined"):
        create("causal_lm", documents="mixed")
