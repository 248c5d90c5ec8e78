"""Skip-gram and continuous bags of words against loops over words, each with its own noise."""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.models.skeletons.outputs import Features
from flaxformer_lite.nn.functions.losses import DeferredLogits


def log_sigmoid(x):
    return -np.logaddexp(0, -x)


def batch_of(objective, records, generator, rows=3):
    examples = [objective.make_example(records, row, generator(row)) for row in range(rows)]
    return jax.tree.map(lambda *xs: np.stack(xs), *examples)


def tables(vocab_size, width=6):
    draw = np.random.default_rng(0)
    return draw.normal(size=(vocab_size, width)), draw.normal(size=(vocab_size, width))


def sums(objective, batch, vectors, contexts):
    vectors, contexts = (jnp.asarray(table, jnp.float32) for table in (vectors, contexts))
    outputs = Features(DeferredLogits(vectors[batch["inputs"]["input_ids"]], contexts))
    return objective.loss(outputs, batch["targets"], chunks=1)


def test_the_loss_is_that_of_each_pair_with_the_mean_of_the_noise(create, records_of, generator):
    objective = create("skip_gram", window=2, draws=7, negatives=3, subsample=0.01)
    batch = batch_of(objective, records_of(objective), generator)
    # some noise is the true word
    batch["targets"]["noise"][:, 0] = batch["targets"]["labels"][:, 0]
    vectors, contexts = tables(362)
    expected = 0.0
    pairs = 0
    for row in range(3):
        ids = batch["inputs"]["input_ids"][row]
        target = {key: x[row] for key, x in batch["targets"].items()}
        for t in range(len(ids)):
            for s in range(target["begin"][t], target["end"][t]):
                if s == t:
                    continue
                pairs += 1
                expected -= log_sigmoid(vectors[ids[t]] @ contexts[ids[s]])
                for noise in target["noise"]:
                    if noise != ids[s]:
                        expected -= 3 / 7 * log_sigmoid(-vectors[ids[t]] @ contexts[noise])
    found = sums(objective, batch, vectors, contexts)
    assert pairs > 20 and float(found.weight["weights"]) == pairs
    np.testing.assert_allclose(float(found.loss["weights"]), expected, rtol=1e-5)


def test_the_loss_of_cbow_is_that_of_each_word_and_the_mean_of_those_around_it(
    create, records_of, generator
):
    objective = create("cbow", window=3, draws=5, negatives=2, subsample=0.01)
    batch = batch_of(objective, records_of(objective), generator)
    batch["targets"]["noise"][:, 0] = batch["targets"]["labels"][:, 0]
    vectors, contexts = tables(362)
    expected = 0.0
    count = 0
    for row in range(3):
        ids = batch["inputs"]["input_ids"][row]
        target = {key: x[row] for key, x in batch["targets"].items()}
        for t in range(len(ids)):
            around = [ids[s] for s in range(target["begin"][t], target["end"][t]) if s != t]
            if around:
                count += 1
                mean = vectors[around].mean(axis=0)
                expected -= log_sigmoid(mean @ contexts[ids[t]])
                noise = contexts[[n for n in target["noise"] if n != ids[t]]]
                expected -= 2 / 5 * log_sigmoid(-noise @ mean).sum()
    found = sums(objective, batch, vectors, contexts)
    assert count > 10 and float(found.weight["weights"]) == count
    np.testing.assert_allclose(float(found.loss["weights"]), expected, rtol=1e-5)


def test_no_array_of_all_words_for_each_word(create, records_of, generator):
    objective = create("skip_gram")
    batch = batch_of(objective, records_of(objective), generator)
    words = jnp.ones((9000, 4))
    shapes = jax.make_jaxpr(lambda v, c: sums(objective, batch, v, c).mean())(words, words)
    largest = max(np.prod(v.aval.shape) for eqn in shapes.jaxpr.eqns for v in eqn.outvars)
    assert largest <= max(9000 * 4, batch["inputs"]["input_ids"].size * 64 * 4)
