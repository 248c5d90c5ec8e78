"""Continuous bag of words against loops over words."""

import numpy as np

from tests.contrib.word_vectors.test_skip_gram import batch_of, log_sigmoid, sums, tables


def test_the_loss_is_that_of_each_word_and_the_mean_of_those_around_it(
    create, records_of, generator
):
    objective = create("cbow", window=3, draws=5, negatives=2, subsample=0.01)
    records = records_of(objective)
    batch = batch_of(objective, records, generator)
    batch["targets"]["noise"][:, 0] = batch["targets"]["labels"][:, 0]
    vectors, contexts = tables(362)
    expected = 0.0
    count = 0
    for row in range(3):
        ids = batch["inputs"]["input_ids"][row]
        target = {key: x[row] for key, x in batch["targets"].items()}
        for t in range(len(ids)):
            around = [ids[s] for s in range(target["begin"][t], target["end"][t]) if s != t]
            if not around:
                continue
            count = count + 1
            mean = vectors[around].mean(axis=0)
            expected -= log_sigmoid(mean @ contexts[ids[t]])
            expected -= sum(
                2 / 5 * log_sigmoid(-mean @ contexts[n]) for n in target["noise"] if n != ids[t]
            )
    found = sums(objective, batch, vectors, contexts)
    assert count > 10 and float(found.weight["weights"]) == count
    np.testing.assert_allclose(float(found.loss["weights"]), expected, rtol=1e-5)
