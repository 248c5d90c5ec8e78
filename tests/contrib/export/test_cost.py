"""The cost of smaller weights, on programs of one product."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from flaxformer_lite.contrib.export.cost import measure_cost
from flaxformer_lite.contrib.export.programs import ExportProgram

ROWS = [[1, 2, 3, 4], [5, 6], [7, 8, 9]] * 4
TABLE = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
SCALED = 0.5 * TABLE


def program(name, output, function):
    ids = jax.ShapeDtypeStruct((8, 4), jnp.int32)
    spec = {"input_ids": ids, "attention_mask": ids}
    return ExportProgram(
        name, lambda params, arrays: {output: function(params, arrays)}, spec, (output,)
    )


def cost(of, head):
    def run(name, inputs):
        return {key: np.asarray(x) for key, x in of.function(SCALED, inputs).items()}

    return measure_cost([of], TABLE, run, ROWS, head=head)


def logits(params, arrays):
    x_BTD = jnp.asarray(params)[arrays["input_ids"]]
    return x_BTD @ jnp.asarray(params).T


def pooled(params, arrays):
    x_BTD = jnp.asarray(params)[arrays["input_ids"]]
    is_real_BT1 = (arrays["attention_mask"] != 0)[:, :, None]
    return jnp.where(is_real_BT1, x_BTD, 0.0).sum(axis=1) + 1


def test_decoders_cost_likelihood():
    own = log_softmax(TABLE @ TABLE.T, axis=-1)
    other = log_softmax(SCALED @ SCALED.T, axis=-1)
    steps = [(a, b) for row in ROWS for a, b in itertools.pairwise(row)]
    exact = -np.mean([own[a, b] for a, b in steps])
    stored = -np.mean([other[a, b] for a, b in steps])
    due = f"{stored - exact:+.4f} nats per token ({exact:.4f} in float32, {len(steps)} tokens)"
    assert cost(program("decode", "logits", logits), "lm") == due


def test_other_vocabularies_cost_divergence():
    p = log_softmax((TABLE @ TABLE.T).astype(np.float64), axis=-1)
    q = log_softmax((SCALED @ SCALED.T).astype(np.float64), axis=-1)
    tokens = [i for row in ROWS for i in row]
    due = np.mean([(np.exp(p[i]) * (p[i] - q[i])).sum() for i in tokens])
    said = cost(program("encode", "logits", logits), "masked_lm")
    assert said == f"{due:.4f} nats per token from float32 (KL, {len(tokens)} tokens)"


def test_classes_and_vectors_are_compared():
    said = cost(program("encode", "logits", pooled), "sequence_classification")
    vectors = [[TABLE[row].sum(axis=0) + 1, SCALED[row].sum(axis=0) + 1] for row in ROWS]
    same = sum(a.argmax() == b.argmax() for a, b in vectors)
    assert said == f"the class of float32 for {same} of 12 texts"
    largest = max(abs(a[0] - b[0]) for a, b in vectors)
    one = program("encode", "logits", lambda params, arrays: pooled(params, arrays)[:, :1])
    said = cost(one, "sequence_classification")
    assert said == f"at most {largest:.4f} from the number of float32 (12 texts)"
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in vectors]
    said = cost(program("embed", "sentence_embedding", pooled), "none")
    assert said == (
        f"cosine with float32 {np.mean(cosines):.4f} on average, at least {min(cosines):.4f}"
        " (12 texts)"
    )
    assert min(cosines) == pytest.approx(0.9, abs=0.1)
