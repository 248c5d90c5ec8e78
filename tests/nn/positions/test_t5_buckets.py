import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.nn.positions.t5_buckets import T5Buckets, buckets

AHEAD = np.arange(-300, 301, dtype=np.int32)


def published(ahead, num_buckets, max_distance, bidirectional):
    """The formula of the published code, in its own words: float32 logarithm, truncated."""
    n = -ahead
    first = np.zeros_like(ahead)
    if bidirectional:
        num_buckets //= 2
        first = (n < 0).astype(np.int32) * num_buckets
        n = np.abs(n)
    else:
        n = np.maximum(n, 0)
    exact = num_buckets // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(n.astype(np.float32) / np.float32(exact)) / np.float32(
            np.log(max_distance / exact)
        )
        large = exact + np.where(n < exact, 0, log * np.float32(num_buckets - exact)).astype(
            np.int32
        )
    return first + np.where(n < exact, n, np.minimum(large, num_buckets - 1))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (32, 256), (64, 128), (16, 100), (6, 20)]
)
def test_equals_the_published_formula(num_buckets, max_distance, bidirectional):
    ours = jax.jit(lambda a: buckets(a, num_buckets, max_distance, bidirectional=bidirectional))(
        AHEAD
    )
    np.testing.assert_array_equal(ours, published(AHEAD, num_buckets, max_distance, bidirectional))
    assert ours.dtype == jnp.int32


def test_bias_is_looked_up_by_head_and_bucket():
    encoding = T5Buckets()
    table = jax.random.normal(jax.random.key(0), (32, 3))
    q_positions = np.array([[3, 4], [0, 40]], np.int32)
    k_positions = np.array([[0, 2, 4], [0, 5, 1]], np.int32)
    bias = encoding.bias(
        {"relative": table}, jnp.ones((2, 2, 3, 4)), q_positions, k_positions, bidirectional=True
    )
    for b, n, t, s in np.ndindex(2, 3, 2, 3):
        bucket = published(k_positions[b, s] - q_positions[b, t], 32, 128, True)
        assert bias[b, n, t, s] == table[int(bucket), n]


def test_table():
    table = T5Buckets().tables(d_model=64, num_heads=3, head_dim=8, max_length=9)["relative"]
    assert table.shape == (32, 3) and table.axes == "RN" and table.init == 1 / 8
    assert not T5Buckets().per_layer and T5Buckets(per_layer=True).per_layer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_buckets": 31}, "num_buckets=31: must be even"),
        ({"num_buckets": 2}, "num_buckets=2"),
        ({"max_distance": 16}, "max_distance=16, num_buckets=32: .*try max_distance=128"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        T5Buckets(**options)
