"""Layouts of fused tensors are spelled by whoever needs them; each is compared with numpy's own
stacking."""

import dataclasses

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.weight_map import WeightRow
from flaxformer_lite.pretrained.layouts import TensorLayout, groups_of

D = 6
N = 2
H = 4
DRAW = np.random.default_rng(0)
Q, K, V = (DRAW.standard_normal((D, N, H)).astype(np.float32) for _ in range(3))
FLAT = [x.reshape(D, N * H) for x in (Q, K, V)]
TENSORS = {
    "3OI": np.concatenate([x.T for x in FLAT]),
    "I3O": np.concatenate(FLAT, axis=1),
    "N3HI": np.stack([Q, K, V], axis=2).reshape(D, -1).T,
    "NH3I": np.stack([Q, K, V], axis=3).reshape(D, -1).T,
    "IN3H": np.stack([Q, K, V], axis=2).reshape(D, -1),
}


def place(layout, part, path="attention/query/kernel", shape=(D, N, H), parts=3):
    return TensorLayout("w", shape, groups_of(layout, path, len(shape)), part, parts)


@pytest.mark.parametrize("layout", TENSORS)
def test_three_parameters_in_one_tensor(layout):
    tensor = TENSORS[layout]
    written = np.zeros_like(tensor)
    for part, due in enumerate((Q, K, V)):
        one = place(layout, part)
        assert one.file_shape == tensor.shape
        for index in ((slice(None),) * 3, (slice(2, 4), slice(1, 2), slice(1, 3))):
            np.testing.assert_array_equal(
                one.read(lambda slices: tensor[slices], index), due[index]
            )
        one.write(due, written)
    np.testing.assert_array_equal(written, tensor)


@pytest.mark.parametrize(
    ("layout", "due"),
    [
        ("3OI", np.concatenate),
        ("N3HI", lambda b: np.stack([x.reshape(N, H) for x in b], 1).reshape(-1)),
    ],
)
def test_biases_have_no_inputs(layout, due):
    biases = [x[0].reshape(-1) for x in (Q, K, V)]
    for part, bias in enumerate(biases):
        one = place(layout, part, "attention/query/bias", (N, H))
        np.testing.assert_array_equal(
            one.read(lambda slices: due(biases)[slices], (slice(None),) * 2).reshape(-1), bias
        )


def test_a_gate_above_its_input():
    gate, up = DRAW.standard_normal((2, D, 5)).astype(np.float32)
    tensor = np.concatenate([gate.T, up.T])
    for part, due in enumerate((gate, up)):
        one = place("2OI", part, "mlp/gate/kernel", (D, 5), parts=2)
        np.testing.assert_array_equal(
            one.read(lambda slices: tensor[slices], (slice(None),) * 2), due
        )


def test_parameters_of_several_sizes_on_one_axis():
    """Four query heads, two keys and values: one after another, or in groups that share a key."""
    query = DRAW.standard_normal((D, 4, H)).astype(np.float32)
    rows = [x.reshape(D, -1).T for x in (query, K, V)]
    grouped = [query.reshape(D, 2, 2, H), K[:, :, None], V[:, :, None]]
    tensors = {
        "+OI": np.concatenate(rows),
        "G+OI": np.concatenate(grouped, axis=2).reshape(D, -1).T,
        "I+O": np.concatenate(rows).T,
    }
    for layout, tensor in tensors.items():
        written = np.zeros_like(tensor)
        for part, due in enumerate((query, K, V)):
            one = dataclasses.replace(
                place(layout, part, shape=due.shape),
                sections=(4 * H, 2 * H, 2 * H),
                repeats=2 if "G" in layout else 1,
            )
            assert one.file_shape == tensor.shape
            for index in ((slice(None),) * 3, (slice(2, 4), slice(1, 2), slice(1, 3))):
                got = one.read(lambda slices, tensor=tensor: tensor[slices], index)
                np.testing.assert_array_equal(got, due[index])
            one.write(due, written)
        np.testing.assert_array_equal(written, tensor)


@pytest.mark.parametrize(
    ("ours", "layout"),
    [(("a", "b"), "OI"), (("a", "b"), "3OI"), ("a", "2OI"), ("a", "XY"), (("a", "b"), "2FI")],
)
def test_a_layout_that_does_not_fit_what_it_stacks_is_refused(ours, layout):
    with pytest.raises(
        ConfigError, match=rf"^Wi: layout='{layout}' of \d parameters: letters I, O, N, H and X"
    ):
        WeightRow("Wi", ours, layout).paths  # noqa: B018
