"""The arguments passed to cuDNN, which is replaced here by JAX's own XLA form with the same
arguments."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import ConfigError, attention, registry
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.nn.attentions import cudnn, dense, dispatch
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.sharding.activations import MeshSharding
from flaxformer_lite.sharding.mesh import build_mesh
from tests.marks import daily
from tests.nn.attentions.cases import On, by_keywords

B = 3
T = 8
S = 12
N = 4
K = 2
H = 16
SCATTERED = np.random.default_rng(0).random((B, S)) < 0.6
SCATTERED[1] = False  # an example whose rows see nothing
SEGMENTS = np.ones((B, T), np.int32)


GPU = On("gpu")
CUDNN = functools.partial(by_keywords(cudnn.attend), sharding=GPU)
DENSE = by_keywords(dense.attend)


@dataclasses.dataclass(frozen=True)
class GpuMesh(MeshSharding):
    """A mesh of devices that are taken for GPUs."""

    platform: str = "gpu"


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    """Not one that computes: what is asked of it is computed by XLA, in float32."""
    monkeypatch.setattr(cudnn, "KERNEL", "xla")
    monkeypatch.setattr(cudnn, "DTYPES", ("float32", "bfloat16"))


def inputs(source=T, kv_heads=K, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(B, T, N, H), (B, source, kv_heads, H), (B, source, kv_heads, H), (B, T, N, H)]
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


def compare(q, k, v, direction, bias=None, **options):
    """Value and gradients, that of the bias among them where it is an array."""
    array = bias is not None and not callable(bias)

    def both(attend, q, k, v, given):
        def run(q, k, v, given):
            return attend(q, k, v, bias=given if array else bias, **options)

        out, pull = jax.vjp(run, q, k, v, given)
        return out, pull(direction)

    run = jax.jit(lambda *arrays: [both(attend, *arrays) for attend in (CUDNN, DENSE)])
    chex.assert_trees_all_close(*run(q, k, v, bias if array else None), rtol=1e-05, atol=1e-05)


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(None, marks=pytest.mark.nightly),
        pytest.param(masks.causal(), marks=pytest.mark.nightly),
        masks.causal() & masks.window(3),
        pytest.param(masks.full(), marks=pytest.mark.nightly),
    ],
)
def test_windows(mask):
    compare(*inputs(), mask=mask, scale=0.3)


@pytest.mark.parametrize(
    "keep",
    [SCATTERED, pytest.param(SCATTERED[:1], marks=pytest.mark.nightly)],
    ids=["of each example", "of all"],
)
def test_padding_anywhere_becomes_lengths(keep):
    compare(*inputs(S), mask=masks.padding(keep))


@pytest.mark.parametrize("shape", [(1, N, T, S), (B, N, T, S), (1, 1, T, S)])
def test_a_bias_and_its_gradient(shape):
    compare(*inputs(S), bias=jax.random.normal(jax.random.key(5), shape))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("position", "source"),
    daily(
        [("t5_buckets", T), ("t5_buckets", S), ("alibi", T), ("alibi", S)],
        [("t5_buckets", S)],
    ),
)
def test_a_bias_of_distances_and_the_gradient_of_its_tables(position, source):
    q, k, v, direction = inputs(source)
    encoding = registry.resolve_class("positions", position)()
    causal = source == T
    wanted = encoding.tables(d_model=N * H, num_heads=N, head_dim=H, max_length=source)
    tables = {
        name: jax.random.normal(jax.random.key(7), table.shape) for name, table in wanted.items()
    }
    rows, columns = (jnp.arange(length, dtype=jnp.int32)[None] for length in (T, source))

    def both(attend):
        def run(tables, q):
            bias = encoding.attention_bias(tables, rows, columns, bidirectional=not causal)
            return attend(q, k, v, mask=masks.causal() if causal else None, bias=bias)

        out, pull = jax.vjp(run, tables, q)
        return out, pull(direction)

    chex.assert_trees_all_close(both(CUDNN), both(DENSE), rtol=1e-05, atol=1e-05)


def test_structure_reaches_cudnn_as_structure(monkeypatch):
    """No array of all pairs but a bias, in the dtype of the queries."""
    asked = {}
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", lambda q, k, v, **given: asked.update(given) or q
    )
    q, k, v, _ = inputs(dtype=jnp.bfloat16)
    CUDNN(q, k, v, mask=masks.causal() & masks.window(3), bias=jnp.zeros((1, N, T, T)))
    assert (
        asked["is_causal"]
        and asked["local_window_size"] == (3, 0)
        and asked["bias"].dtype == jnp.bfloat16
    )
    CUDNN(q, k, v, mask=masks.padding(np.tril(np.ones((B, T), bool), 4)))
    assert asked["key_value_seq_lengths"].tolist() == [5, 6, 7] and not asked["is_causal"]
    assert asked["bias"] is None and "mask" not in asked


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": jnp.float16}, "float16; cuDNN takes"),
        ({"mask": masks.segments(SEGMENTS)}, "packed documents"),
        ({"mask": masks.window(3, 3)}, "extends to the right"),
        (
            {"mask": masks.causal() & masks.padding(SCATTERED[:, :T])},
            "padding beside a causal mask or a bias",
        ),
        (
            {"mask": masks.padding(SCATTERED[:, :T]), "bias": jnp.zeros((1, N, T, T))},
            "padding beside a causal mask or a bias",
        ),
        ({"mask": jnp.ones((1, T, T), bool)}, "not an intersection"),
        ({"mask": masks.causal(), "source": S}, "a causal mask over 8 rows and 12 columns"),
        ({"source": 7}, "lengths 8 and 7"),
        (
            {"bias": lambda q, rows, columns: jnp.zeros((1, N, T, T))},
            "neither an array nor a function of distance",
        ),
        ({"softcap": 2.0}, "no soft cap"),
        ({"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}, "drops no weights"),
        ({"q_index": jnp.arange(T)}, "slots of a cache"),
    ],
)
def test_it_says_what_it_cannot(options, reason):
    q, k, v, _ = inputs(options.pop("source", T), dtype=options.pop("dtype", jnp.float32))
    with pytest.raises(
        ConfigError, match=rf"attention 'cudnn': .*{reason}.*; set model.attention=auto"
    ):
        attention(q, k, v, **options, implementation="cudnn", sharding=GPU)


def test_it_says_what_shapes_it_cannot(monkeypatch):
    q, k, v, _ = inputs()
    assert "head_dim 12" in cudnn.unsupported_reason(
        q[..., :12], k[..., :12], v[..., :12], Arguments(sharding=GPU)
    )
    assert "the same for keys and values" in cudnn.unsupported_reason(
        q, k, v[..., :8], Arguments(sharding=GPU)
    )
    monkeypatch.setattr(cudnn, "MAX_BIAS_PAIRS", 100)
    assert "too large" in cudnn.unsupported_reason(
        q, k, v, Arguments(bias=jnp.zeros((1, N, T, T)), sharding=GPU)
    )


def test_as_a_platforms_kernel_it_is_taken_or_the_reason_said(monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "MAX_DENSE_LENGTH", 4)
    monkeypatch.setitem(dispatch.KERNELS, "gpu", "cudnn")  # as once a GPU has run it
    dispatch._log_choice.cache_clear()
    q, k, v, _ = inputs()
    with caplog.at_level("INFO", "flaxformer_lite"):
        out = attention(q, k, v, mask=masks.causal(), sharding=GPU)
        packed = attention(q, k, v, mask=masks.causal() & masks.segments(SEGMENTS), sharding=GPU)
    np.testing.assert_allclose(out, packed, rtol=1e-5, atol=1e-5)
    assert [record.message for record in caplog.records] == [
        "attention: cudnn",
        "attention: dense (not cudnn, packed documents; cuDNN separates examples, not documents)",
    ]


@pytest.mark.parametrize("kind", daily(["padding", "array", "distances"], ["padding", "distances"]))
def test_each_device_has_its_own_rows_and_heads(kind):
    # four examples, on two devices of two heads each
    q, k, v, _ = (jnp.concatenate([x, x[:1]]) for x in inputs(S))
    options = {
        "padding": {"mask": masks.padding(np.concatenate([SCATTERED, SCATTERED[:1]]))},
        "array": {"bias": jax.random.normal(jax.random.key(5), (1, N, T, S))},
        "distances": {
            "bias": (
                registry.resolve_class("positions", "alibi")().attention_bias(
                    {}, jnp.arange(T)[None], jnp.arange(S)[None], bidirectional=True
                )
            )
        },
    }[kind]
    parts = []

    def kernel(q, k, v, **given):
        parts.append((q.shape, k.shape, None if given["bias"] is None else given["bias"].shape))
        return plain(q, k, v, **given)

    plain = jax.nn.dot_product_attention
    placement = GpuMesh(build_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4]))

    def on_devices(q, k, v, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax.nn, "dot_product_attention", kernel)
            return by_keywords(cudnn.attend)(q, k, v, **options, sharding=placement)

    def both(attend):
        array = options.get("bias") if kind == "array" else None

        @jax.jit
        def run(*arrays):
            def attended(q, k, v, array):
                return attend(q, k, v, **(options if array is None else {"bias": array}))

            out, pull = jax.vjp(attended, *arrays)
            return out, pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

        return run(q, k, v, array)

    chex.assert_trees_all_close(both(on_devices), both(DENSE), rtol=1e-05, atol=1e-05)
    assert parts == [((2, T, 2, H), (2, S, 1, H), None if kind == "padding" else (1, 2, T, S))]
