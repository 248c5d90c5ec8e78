"""The contract of every objective on text, tested unasked for a new file; test_tasks.py has that of
tasks."""

import dataclasses
import inspect
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import required_head
from flaxformer_lite.contrib.word_vectors.word_windows import WordWindows
from flaxformer_lite.models.skeletons.outputs import Features, Output
from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.objectives.sums import weight_sums
from flaxformer_lite.registry import available, resolve_class
from tests.objectives.test_tasks import TASKS

OBJECTIVES = [name for name in available("objectives") if name not in TASKS]
PACKED = [
    name for name in OBJECTIVES if not issubclass(resolve_class("objectives", name), WordWindows)
]


@pytest.fixture(params=OBJECTIVES)
def objective(request, create):
    return create(request.param)


@pytest.fixture
def records(objective, records_of):
    return records_of(objective)


def leaves(example):
    found = jax.tree_util.tree_leaves_with_path(example)
    return {jax.tree_util.keystr(path): x for path, x in found}


def same(a, b):
    a = leaves(a)
    b = leaves(b)
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def test_an_example_is_that_of_its_row_and_seed(objective, records, generator):
    examples = []
    for row in range(len(records)):
        first, second = (objective.make_example(records, row, generator(3, row)) for _ in range(2))
        assert same(first, second)
        examples.append(first)
    assert not any(same(examples[0], other) for other in examples[1:5])


def test_fixed_shapes_and_types(objective, records, generator):
    shapes = set()
    for row in range(len(records)):
        made = objective.make_example(records, row, generator(row))
        example = leaves(made)
        assert all(x.dtype in (np.int32, np.float32, np.bool_) for x in example.values())
        shapes.add(tuple((key, x.shape, x.dtype.name) for key, x in sorted(example.items())))
        for x in (made["inputs"]["input_ids"], made["targets"]["labels"]):
            assert x.min() >= 0 and x.max() < records.tokenizer.vocab_size
    assert len(shapes) == 1
    assert made["inputs"]["input_ids"].shape == (records.length,)


@pytest.mark.parametrize("objective", PACKED, indirect=True)
def test_padding_is_last_without_weight_and_the_padding_id(objective, records, generator):
    padded = 0
    for row in range(len(records)):
        example = objective.make_example(records, row, generator(row))
        inputs = example["inputs"]
        targets = example["targets"]
        padded += (inputs["segment_ids"] == 0).sum()
        assert (inputs["input_ids"][inputs["segment_ids"] == 0] == records.tokenizer.pad_id).all()
        if "masked_positions" in inputs:
            counted = inputs["masked_positions"][targets["weights"] > 0]
            assert (inputs["segment_ids"][counted] > 0).all() and len(set(counted)) == len(counted)
        else:
            segments = inputs.get("decoder_segment_ids", inputs["segment_ids"])
            assert (targets["weights"][segments == 0] == 0).all()
        assert set(np.unique(targets["weights"])) <= {0.0, 1.0} and targets["weights"].any()
        for key in {"segment_ids", "decoder_segment_ids"} & inputs.keys():
            real = inputs[key][inputs[key] > 0]
            assert set(np.diff(real)) <= {0, 1} and real[0] == 1, "segments count up"
            assert (inputs[key][len(real) :] == 0).all()
    assert padded, "the text must have shown padding"


@pytest.mark.parametrize("objective", PACKED, indirect=True)
def test_a_segment_is_of_one_document(objective, records, generator):
    """The letters of neighbouring documents do not overlap, so a segment that mixed two would
    show."""
    for row in range(len(records)):
        example = objective.make_example(records, row, generator(row))
        if "next_sentence_label" in example["targets"]:
            continue
        inputs = example["inputs"]
        for prefix in ("", "decoder_"):
            for number in range(1, inputs.get(f"{prefix}segment_ids", np.zeros(1, int)).max() + 1):
                ids = inputs[f"{prefix}input_ids"][inputs[f"{prefix}segment_ids"] == number]
                text = records.tokenizer.decode(ids).replace(" ", "").replace("\ufffd", "")
                kinds = {
                    (c.isdigit(), c.isupper(), "k" <= c.lower() <= "t", c.lower() > "t")
                    for c in text
                }
                # a random token may be of any kind
                assert len(kinds) <= 1 or "masked_positions" in inputs


@pytest.fixture
def batch(objective, records, generator):
    examples = [objective.make_example(records, row, generator(row)) for row in range(4)]
    return jax.tree.map(lambda *xs: np.stack(xs), *examples)


class Made:
    """A bound model that returns what is drawn for a batch, whatever its inputs."""

    cfg = types.SimpleNamespace(decoder_start_token_id=None)

    def __init__(self, x, kernel, pair, logits):
        self.x = x
        self.kernel = kernel
        self.pair = pair
        self.logits = logits

    def features(self, *_, **inputs):
        return Features(DeferredLogits(self.x, self.kernel), self.pair)

    def __call__(self, *_, **inputs):
        return Output(logits=self.logits)

    def rows(self, part):
        return Made(self.x[part], self.kernel, self.pair[part], self.logits[part])

    def times(self, kernel):
        return Made(self.x, kernel, self.pair, self.logits)


@pytest.fixture
def made(batch, records, generator):
    rng = generator(0)
    count = batch["targets"]["labels"].shape
    shapes = ((*count, 8), (records.tokenizer.vocab_size, 8), (count[0], 2))
    drawn = (rng.normal(size=shape) for shape in (*shapes, batch["inputs"]["input_ids"].shape))
    return Made(*(jnp.asarray(x, jnp.float32) for x in drawn))


@pytest.fixture
def outputs(objective):
    """outputs(made, batch) -> the input of the loss, with the same made-up model as the auxiliary
    model, if there is one."""
    count = len(inspect.signature(objective.outputs).parameters) - 1

    def run(made, batch):
        return objective.outputs(made, batch["inputs"], *[made] * (count - 1))

    return run


def test_losses_and_gradients_of_parts_add_up_to_those_of_the_batch(
    objective, batch, made, outputs
):
    @jax.jit
    def gradient(kernel, batch, totals, part):
        def loss(kernel):
            rows = jax.tree.map(lambda x: x[part], batch)
            out = outputs(made.rows(part).times(kernel), rows)
            sums = objective.loss(out, rows["targets"], chunks=1)
            return sums.mean(totals), sums

        return jax.value_and_grad(loss, has_aux=True)(kernel)

    kernel = made.kernel
    totals = weight_sums(batch["targets"])
    parts = [gradient(kernel, batch, totals, part) for part in (np.arange(2), np.arange(2, 4))]
    (value, sums), grads = jax.tree.map(np.add, *parts)
    (whole, _), whole_grads = gradient(kernel, batch, totals, np.arange(4))
    np.testing.assert_allclose(value, whole, rtol=1e-5)
    np.testing.assert_allclose(grads, whole_grads, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(value, sums.mean(), rtol=1e-5)
    assert jax.tree.map(float, sums.weight) == jax.tree.map(float, totals)
    assert all(weight > 0 and total >= 0 for total, weight in sums.metrics.values())


def test_a_batch_of_no_weight_loses_nothing(objective, batch, made, outputs):
    given = batch["targets"]
    targets = given | {key: 0 * x for key, x in given.items() if x.dtype == np.float32}

    def loss(kernel):
        return objective.loss(outputs(made.times(kernel), batch), targets, chunks=1).mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(made.kernel)
    assert float(value) == 0
    assert not np.any(grads)


@pytest.mark.parametrize("objective", PACKED, indirect=True)
def test_options_out_of_range(objective):
    with pytest.raises(ValueError, match=r"label_smoothing=1.0:.*probability.*\[0, 1\)"):
        dataclasses.replace(objective, label_smoothing=1.0)
    with pytest.raises(ValueError, match="z_loss=-1: must not be negative"):
        dataclasses.replace(objective, z_loss=-1)


def test_what_is_shown_is_measured_and_the_head_is_one_that_such_models_have(
    objective, batch, made, outputs
):
    sums = objective.loss(outputs(made, batch), batch["targets"], chunks=1)
    of_data = {"perplexity", "bits_per_byte"}
    assert {metric.name for metric in objective.shown} <= sums.means().keys() | of_data
    assert objective.shown[0].name in sums.means(), "it is drawn for training too"
    for skeleton in objective.skeletons:
        names = ("gpt2", "bert", "t5", "word2vec")
        families = [registry.resolve("models", name).Model for name in names]
        heads = [head for m in families if m.skeleton == skeleton for head in m.heads]
        assert required_head(objective, skeleton) in heads
