import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.functions import masks

T = 7
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 0], [4, 4, 4, 4, 4, 0, 0]], np.int32)
KEEP = np.array([[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]], bool)

MASKS = {
    "full": masks.full(),
    "causal": masks.causal(),
    "window": masks.window(2, 1),
    "padding": masks.padding(KEEP),
    "segments": masks.segments(SEGMENTS),
    "prefix-lm": masks.causal() | masks.prefix(~KEEP),
    "packed": masks.causal() & masks.segments(SEGMENTS),
    "outside": ~masks.window(1, 1),
    "dense": masks.dense(np.tri(T, dtype=bool)[None]),
}


def rule(name, b, q, k):
    """Who may attend, said once more, an element at a time."""
    return {
        "full": True,
        "causal": k <= q,
        "window": q - 2 <= k <= q + 1,
        "padding": KEEP[b, k],
        "segments": SEGMENTS[b, q] == SEGMENTS[b, k] != 0,
        "prefix-lm": k <= q or not KEEP[b, k],
        "packed": k <= q and SEGMENTS[b, q] == SEGMENTS[b, k] != 0,
        "outside": abs(q - k) > 1,
        "dense": k <= q,
    }[name]


@pytest.mark.parametrize("name", MASKS)
def test_dense_form_says_the_rule(name):
    mask = np.asarray(MASKS[name].dense(T))
    expected = [
        [[rule(name, b, q, k) for k in range(T)] for q in range(T)] for b in range(len(mask))
    ]
    np.testing.assert_array_equal(mask, expected)
    assert mask.dtype == bool


@pytest.mark.parametrize("name", MASKS)
def test_a_block_is_a_part_of_the_whole(name):
    rows = jnp.array([4, 2, 3])
    columns = jnp.array([6, 0, 5, 1])
    whole = np.asarray(MASKS[name].dense(T))
    np.testing.assert_array_equal(MASKS[name](rows, columns), whole[:, rows][:, :, columns])


@pytest.mark.parametrize("name", MASKS)
def test_nothing_outside_the_reach_is_visible(name):
    whole = np.asarray(MASKS[name].dense(T))
    for start, stop in itertools.combinations(range(T + 1), 2):
        first, last = MASKS[name].column_bounds(start, stop, T)
        assert 0 <= first <= last <= T
        assert not whole[:, start:stop, :first].any() and not whole[:, start:stop, last:].any()


def test_reach_is_tight_where_the_structure_is_known():
    assert masks.causal().column_bounds(2, 4, 100) == (0, 4)
    assert masks.window(3).column_bounds(10, 12, 100) == (7, 12)
    assert (masks.causal() & masks.segments(SEGMENTS)).column_bounds(2, 4, 100) == (0, 4)
    assert (masks.window(1) | masks.window(3)).column_bounds(10, 12, 100) == (7, 12)
    assert (masks.window(0) & masks.window(0, 5)).column_bounds(90, 100, 95) == (90, 95)


@pytest.mark.parametrize("name", MASKS)
def test_empty_slots_are_never_attended(name):
    slots = jnp.array([2, -1, 3, -5])
    for mask in (MASKS[name], ~MASKS[name]):
        assert not np.asarray(mask(jnp.arange(T), slots))[..., [1, 3]].any()


def test_masks_pass_through_jit_and_vmap():
    mask = jax.jit(lambda mask: (mask & masks.window(2)).dense(T))(MASKS["packed"])
    np.testing.assert_array_equal(mask, (MASKS["packed"] & masks.window(2)).dense(T))
    rows = jax.vmap(lambda keep: masks.padding(keep[None]).dense(T)[0])(jnp.asarray(KEEP))
    np.testing.assert_array_equal(rows, masks.padding(KEEP).dense(T))


def test_cross_attention_segments():
    mask = masks.segments(np.array([[1, 2, 0]]), np.array([[2, 1, 1, 0]])).dense(3, 4)
    np.testing.assert_array_equal(mask, [[[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]])


def test_picture():
    expected = "# . .\n# # .\n. # #"
    assert masks.window(1).picture(3) == expected
    assert masks.padding(KEEP).picture(1, 7) == "# # # # # . ."
    assert masks.padding(KEEP).picture(1, 7, example=1) == ". . # # # # #"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: masks.padding(KEEP.astype(np.float32)),
            r"padding\(keep\).*not float32 \(2, 7\).*x != 0",
        ),
        (lambda: masks.prefix(KEEP[0]), r"prefix\(in_prefix\).*not bool \(7,\)"),
        (lambda: masks.dense(KEEP[:, None, None, None]), r"dense\(mask\).*batch, target, source"),
        (lambda: masks.segments(KEEP), r"segments\(q\): must be integer ids"),
        (lambda: masks.segments(SEGMENTS, SEGMENTS[0]), r"segments\(k\)"),
        (lambda: masks.window(-1), "neither may be negative"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "array", [np.tri(T, dtype=bool), jnp.tri(T, dtype=bool)], ids=["numpy", "jax"]
)
def test_arrays_combine_with_masks_from_either_side(array):
    keep = masks.padding(KEEP)
    for both in (keep & array, array & keep):
        np.testing.assert_array_equal(both.dense(T), np.tri(T, dtype=bool) & KEEP[:, None])
    for either in (keep | array, array | keep):
        np.testing.assert_array_equal(either.dense(T), np.tri(T, dtype=bool) | KEEP[:, None])


@pytest.mark.parametrize("other", [None, 1, masks.causal])
def test_what_is_no_mask_does_not_combine(other):
    for combine in (
        lambda: masks.causal() & other,
        lambda: masks.causal() | other,
        lambda: other & masks.causal(),
    ):
        with pytest.raises(
            TypeError,
            match=r"masks.*padding\(x\) or dense\(x\)",
        ):
            combine()


def test_lists_are_read_as_arrays():
    for made, expected in (
        (masks.padding(KEEP.astype(int).tolist()), masks.padding(KEEP)),
        (masks.segments(SEGMENTS.tolist(), SEGMENTS.tolist()), masks.segments(SEGMENTS)),
        (masks.dense(np.tri(T, dtype=bool).tolist()), masks.causal()),
    ):
        np.testing.assert_array_equal(made.dense(T), expected.dense(T))


def test_a_mask_that_was_not_called_is_refused():
    with pytest.raises(TypeError, match=r"mask=causal: is a function.*call it: mask=causal\(\)"):
        masks.dense(masks.causal)
    with pytest.raises(TypeError, match=r"padding\(keep\):.*not NoneType"):
        masks.padding(None)
