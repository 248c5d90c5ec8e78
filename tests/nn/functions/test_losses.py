import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite.analysis import hlo
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.nn.functions import losses, tuning
from flaxformer_lite.nn.functions.losses import (
    DeferredLogits,
    SoftTargets,
    cross_entropy,
    gather_positions,
    token_log_probs,
)
from flaxformer_lite.nn.functions.sharding import UNSHARDED, ActivationSharding
from flaxformer_lite.sharding.activations import LocalSharding, MeshSharding
from flaxformer_lite.sharding.mesh import build_mesh
from tests.marks import daily

B = 3
T = 7
D = 8
V = 13
TUNED = ActivationSharding(tuned=True)
GPU = LocalSharding("gpu")


@pytest.fixture
def case():
    numbers = np.random.default_rng(0)
    x, kernel, bias = (
        jnp.asarray(numbers.standard_normal(shape, np.float32)) for shape in ((B, T, D), (V, D), V)
    )
    weights = numbers.random((B, T), np.float32)
    weights[0, :2] = 0
    return x, kernel, bias, jnp.asarray(numbers.integers(0, V, (B, T))), jnp.asarray(weights)


def plain(
    x, kernel, bias, labels, weights, scale=1.0, softcap=0.0, z_loss=0.0, label_smoothing=0.0
):
    """The same sums through optax, one-hot labels and whole logits."""
    logits = jnp.einsum("...D,VD->...V", x.astype(jnp.float32), kernel) * scale
    logits = logits if bias is None else logits + bias.reshape((1,) * (logits.ndim - 1) + (-1,))
    logits = softcap * jnp.tanh(logits / softcap) if softcap else logits
    one_hot = jax.nn.one_hot(labels, V)
    nll = optax.softmax_cross_entropy(logits, one_hot)
    loss = optax.softmax_cross_entropy(logits, optax.smooth_labels(one_hot, label_smoothing))
    loss += z_loss * jax.nn.logsumexp(logits, axis=-1) ** 2
    correct = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    return (weights * loss).sum(), (weights * nll).sum(), weights.sum(), (weights * correct).sum()


def test_fused_equals_plain_in_value_and_gradient(case):
    x, kernel, bias, labels, weights = case
    head = {"scale": 0.3, "softcap": 2.0}
    loss_options = {"z_loss": 1e-2, "label_smoothing": 0.1}

    def reference(x, kernel, bias):
        sums = plain(x, kernel, bias, labels, weights, **head, **loss_options)
        return 2 * sums[0], sums

    (_, expected), expected_grads = jax.jit(jax.value_and_grad(reference, (0, 1, 2), has_aux=True))(
        x, kernel, bias
    )
    for placed, chunks in ((UNSHARDED, 1), (UNSHARDED, 4), (TUNED, 4), (TUNED, 100)):

        def fused(x, kernel, bias, placed=placed, chunks=chunks):
            projection = DeferredLogits(x, kernel, bias, **head, sharding=placed)
            ce = cross_entropy(projection, labels, weights, chunks=chunks, **loss_options)
            return 2 * ce.loss_sum, (ce.loss_sum, ce.nll_sum, ce.weight_sum, ce.correct_sum)

        def both(*arrays, fused=fused):
            return jax.value_and_grad(fused, (0, 1, 2), has_aux=True)(*arrays), fused(*arrays)[1]

        ((_, sums), grads), undifferentiated = jax.jit(both)(x, kernel, bias)
        close = functools.partial(
            np.testing.assert_allclose, rtol=2e-5, atol=2e-6, err_msg=f"{chunks=}, {placed=}"
        )
        for ours, wanted in (
            (sums, expected),
            (undifferentiated, expected),
            (grads, expected_grads),
        ):
            jax.tree.map(close, ours, wanted)


@pytest.mark.parametrize(
    ("weight", "chunks"), daily([(0.0, 3), (0.3, 1), (0.3, 3), (1.0, 3)], [(0.3, 3)])
)
def test_a_teacher_is_mixed_in_as_hinton_does(case, chunks, weight):
    """The teacher is wider, with logits of its own scale; D is 2 here, so that all tokens are cut
    into chunks."""
    x, kernel, bias, labels, weights = case
    x = x[..., :2]
    kernel = kernel[:, :2]
    t = 3.0
    keys = jax.random.split(jax.random.key(9), 2)
    teacher = DeferredLogits(
        2 * jax.random.normal(keys[0], (B, T, 5)), jax.random.normal(keys[1], (V, 5)), scale=0.7
    )

    def reference(x, kernel, bias):
        hard, nll, *_ = plain(x, kernel, bias, labels, weights, z_loss=1e-2)
        p = jax.nn.softmax(teacher.logits() / t)
        log_q = jax.nn.log_softmax((jnp.einsum("BTD,VD->BTV", x, kernel) + bias[None, None]) / t)
        divergence = t**2 * (weights * optax.kl_divergence(log_q, p)).sum()
        return (1 - weight) * hard + weight * divergence, (nll, divergence)

    def fused(x, kernel, bias):
        soft = SoftTargets(teacher, temperature=t, weight=weight)
        ce = cross_entropy(
            DeferredLogits(x, kernel, bias), labels, weights, z_loss=1e-2, soft=soft, chunks=chunks
        )
        return ce.loss_sum, (ce.nll_sum, ce.soft_sum)

    wanted, got = (
        jax.jit(jax.value_and_grad(f, (0, 1, 2), has_aux=True))(x, kernel, bias)
        for f in (reference, fused)
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5), got, wanted)
    chex.assert_trees_all_close(jax.jit(fused)(x, kernel, bias), got[0], rtol=2e-05)


@pytest.mark.nightly
def test_neither_a_students_nor_a_teachers_logits_are_held_at_once():
    tokens = 512
    vocabulary = 4096
    x = jnp.ones((1, tokens, 8))
    kernel = jnp.ones((vocabulary, 8))
    labels = jnp.zeros((1, tokens), jnp.int32)
    weights = jnp.ones((1, tokens))

    def loss(x, kernel, teacher):
        projection = DeferredLogits(x, kernel, sharding=TUNED)
        soft = SoftTargets(dataclasses.replace(projection, x=teacher))
        return cross_entropy(projection, labels, weights, soft=soft, chunks=16).loss_sum

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(x, kernel, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < tokens * vocabulary * 4


def test_a_gpu_compares_where_others_look_up(case):
    x, kernel, _, labels, weights = case

    def run(labels, x, placed=GPU):
        ce = cross_entropy(
            DeferredLogits(x, kernel, sharding=placed), labels, weights, label_smoothing=0.1
        )
        return ce.loss_sum, (ce.nll_sum, ce.correct_sum)

    both = jax.jit(jax.value_and_grad(run, 1, has_aux=True), static_argnums=2)
    looked_up = both(labels, x, UNSHARDED)
    compared = both(labels, x, GPU)
    chex.assert_trees_all_close(compared, looked_up, rtol=1e-05, atol=1e-06)
    assert "scatter" not in str(jax.make_jaxpr(jax.grad(lambda x: run(labels, x)[0]))(x))
    assert jnp.isnan(both(labels.at[1, 3].set(V), x, GPU)[0][0]) and weights[1, 3] > 0
    assert both(labels.at[0, 0].set(-100), x, GPU)[0][0] == compared[0][0] and weights[0, 0] == 0


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8, jnp.int32])
def test_labels_of_bytes_and_derivatives_in_both_modes(dtype):
    labels = jnp.asarray([5, 100], dtype)
    logits, direction = (jax.random.normal(jax.random.key(n), (2, 384)) for n in range(2))

    def loss(logits):
        return cross_entropy(logits, labels).loss_sum

    def due(logits, direction):
        softmax = jax.nn.softmax(logits)
        slope = softmax - jax.nn.one_hot(labels.astype(jnp.int32), 384)
        curve = softmax * (direction - (softmax * direction).sum(axis=-1, keepdims=True))
        return slope, (slope * direction).sum(), curve

    def derivatives(logits, direction):
        slope, curve = jax.jvp(jax.grad(loss), (logits,), (direction,))
        return slope, jax.jvp(loss, (logits,), (direction,))[1], curve

    ours, wanted = (jax.jit(function)(logits, direction) for function in (derivatives, due))
    for got, expected, tolerance in zip(
        ours, wanted, ({"atol": 1e-6}, {"rtol": 1e-5}, {"atol": 1e-6}), strict=True
    ):
        np.testing.assert_allclose(got, expected, **tolerance)


@pytest.mark.parametrize("tokens", [(6,), (2, 3), (2, 3, 1)])
def test_any_leading_axes(case, tokens):
    x, kernel, bias, labels, weights = case
    x = x[:2, :3].reshape(*tokens, D)
    labels = labels[:2, :3].reshape(tokens)
    weights = weights[:2, :3].reshape(tokens)
    ce = jax.jit(lambda *head: cross_entropy(DeferredLogits(*head), labels, weights, chunks=2))(
        x, kernel, bias
    )
    wanted = jax.jit(plain)(x, kernel, bias, labels, weights)
    np.testing.assert_allclose(
        (ce.loss_sum, ce.nll_sum, ce.weight_sum, ce.correct_sum), wanted, rtol=1e-5
    )


@pytest.mark.parametrize("chunks", daily([1, 3], [3]))
def test_bfloat16_features_have_float32_sums_and_gradients_of_their_own_dtype(case, chunks):
    x, kernel, bias, labels, weights = case
    x = x.astype(jnp.bfloat16)

    def fused(x, kernel, bias):
        return (
            cross_entropy(DeferredLogits(x, kernel, bias), labels, weights, chunks=chunks).loss_sum
            / weights.sum()
        )

    def reference(x, kernel, bias):
        return (
            plain(x, kernel.astype(jnp.bfloat16).astype(jnp.float32), bias, labels, weights)[0]
            / weights.sum()
        )

    loss, grads = jax.jit(jax.value_and_grad(fused, (0, 1, 2)))(x, kernel, bias)
    wanted, wanted_grads = jax.jit(jax.value_and_grad(reference, (0, 1, 2)))(x, kernel, bias)
    assert loss.dtype == jnp.float32 and [g.dtype for g in grads] == [
        jnp.bfloat16,
        jnp.float32,
        jnp.float32,
    ]
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    for g, w in zip(grads, wanted_grads, strict=True):
        np.testing.assert_allclose(g.astype(jnp.float32), w.astype(jnp.float32), atol=2e-3)


def test_labels_without_weight_may_be_anything_and_others_may_not(case):
    x, kernel, _, labels, weights = case
    grad = jax.jit(
        jax.value_and_grad(
            lambda x, y: cross_entropy(DeferredLogits(x, kernel), y, weights).loss_sum
        )
    )
    loss, d_x = grad(x, labels)
    ignored_loss, ignored_d_x = grad(x, labels.at[0, 0].set(-100).at[0, 1].set(V))
    assert loss == ignored_loss and (d_x == ignored_d_x).all() and (d_x[0, :2] == 0).all()
    assert jnp.isnan(grad(x, labels.at[1, 1].set(V))[0])


def test_huge_logits_stay_finite(case):
    x, kernel, _, labels, _ = case
    huge = lambda x: cross_entropy(DeferredLogits(1e4 * x, kernel), labels).loss_sum  # noqa: E731
    loss, grad = jax.jit(jax.value_and_grad(huge))(x)
    assert jnp.isfinite(loss) and jnp.isfinite(grad).all()


def test_logits_of_all_tokens_are_never_held_at_once():
    tokens = 256
    width = 16
    vocabulary = 4096
    shapes = [
        jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, tokens // 4, width), (vocabulary, width))
    ]

    def temporary(chunks):
        labels = jnp.zeros((4, tokens // 4), jnp.int32)
        grad = jax.grad(
            lambda x, kernel: (
                cross_entropy(
                    DeferredLogits(x, kernel, sharding=TUNED), labels, chunks=chunks
                ).loss_sum
            ),
            (0, 1),
        )
        return jax.jit(grad).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    whole = 4 * tokens * vocabulary
    assert temporary(8) < whole / 2
    assert temporary(1) > whole


def test_gradients_of_the_kernel_are_added_in_place():
    width = 512
    vocabulary = 8192
    labels = jnp.zeros((2, 512), jnp.int32)

    def loss(kernel, x):
        return cross_entropy(DeferredLogits(x, kernel, sharding=TUNED), labels, chunks=4).loss_sum

    square = jax.jit(lambda kernel, x: jnp.square(jax.grad(loss)(kernel, x)).sum())
    compiled = square.lower(
        *(jax.ShapeDtypeStruct((*n, width), jnp.float32) for n in ((vocabulary,), labels.shape))
    ).compile()
    # The sum and what makes a chunk's logits and gradients, half as large each; a second sum would
    # make it 2.6.
    assert compiled.memory_analysis().temp_size_in_bytes < 2.3 * 4 * vocabulary * width
    assert not re.search(rf"= f32\[{vocabulary},{width}\]\S* copy\(", compiled.as_text())


@pytest.mark.parametrize("sharding", [UNSHARDED, TUNED], ids=str)
def test_a_frozen_vocabulary_costs_no_product(case, sharding):
    x, kernel, bias, labels, weights = case

    def loss(x, kernel):
        projection = DeferredLogits(x, kernel, bias, sharding=sharding)
        return cross_entropy(projection, labels, weights, chunks=3).loss_sum

    def cost(*argnums):
        gradient = jax.jit(jax.grad(loss, argnums))
        return gradient.lower(x, kernel).compile().cost_analysis()["flops"]

    product = 2 * B * T * D * V
    assert cost(0, 1) - cost(0) >= product
    frozen = jax.grad(loss)(x, kernel)
    np.testing.assert_allclose(frozen, jax.grad(loss, (0, 1))(x, kernel)[0], rtol=1e-5, atol=1e-6)


def test_a_second_call_without_jit_traces_nothing(monkeypatch):
    traced = []
    sums = losses._sums
    monkeypatch.setattr(losses, "_sums", lambda *args: traced.append(args) or sums(*args))
    kernel_VD = jnp.ones((V, D))
    labels = jnp.zeros((2, 2 * D + 3), jnp.int32)  # of a shape that no other test has

    def loss(x):
        return cross_entropy(DeferredLogits(x, kernel_VD), labels).loss_sum

    counts = []
    for scale in (1, 2):
        x = jnp.full((*labels.shape, D), scale, jnp.float32)
        loss(x)
        jax.grad(loss)(x)
        counts.append(len(traced))
    assert 0 < counts[0] == counts[1]


@pytest.mark.parametrize("vocabulary", [1, 3])
def test_a_vocabulary_of_fewer_words_than_slices(vocabulary):
    x = jax.random.normal(jax.random.key(0), (7, 5))
    kernel = jnp.ones((vocabulary, 5))
    labels = jnp.zeros(7, jnp.int32)

    def gradient(chunks):
        def loss(k):
            return cross_entropy(
                DeferredLogits(x, k, sharding=TUNED), labels, chunks=chunks
            ).loss_sum

        return jax.jit(jax.grad(loss))(kernel)

    np.testing.assert_allclose(gradient(3), gradient(1), atol=1e-6)


def test_logits_of_no_more_tokens_than_the_width_are_not_cut():
    def products(tokens):
        projection = DeferredLogits(jnp.ones((tokens, 16)), jnp.ones((32, 16)), sharding=TUNED)
        labels = jnp.zeros(tokens, jnp.int32)
        loss = lambda projection: cross_entropy(projection, labels, chunks=4).loss_sum  # noqa: E731
        return str(jax.make_jaxpr(jax.grad(loss))(projection)).count("dot_general[")

    assert products(16) == 3
    # the kernel's gradient is added to in slices
    assert products(17) == 4 * 2 + 1 + 3 * tuning.SUM_SLICES


def test_chunks_keep_the_batch_axis_whole(case):
    x, kernel, _, labels, _ = case
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Spy(ActivationSharding):
        def constrain(self, x, letters):
            seen.append((letters, x.shape))
            return x

    cross_entropy(DeferredLogits(x, kernel, sharding=Spy()), labels, chunks=3)
    # Of lengths 2, 2 and 3, and equal ones are traced once.
    assert seen == [("BTV", (B, t, V)) for t in (2, 3)]


def test_gather_positions():
    x = jax.random.normal(jax.random.key(0), (2, 5, 3))
    positions = jnp.asarray([[4, 0, 0], [2, 3, 1]])
    gathered = gather_positions(x, positions)
    np.testing.assert_array_equal(
        gathered, [[x[b, p] for p in row] for b, row in enumerate(positions)]
    )
    grad = jax.jit(jax.grad(lambda x: gather_positions(x, positions).sum()))(x)
    np.testing.assert_array_equal(grad[0, :, 0], [2, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, y, w: cross_entropy(p, y[:, :2], w), r"labels \(3, 2\).*per token, \(3, 7\)"),
        (lambda p, y, w: cross_entropy(p, y, w[0]), r"weights \(7,\)"),
        (lambda p, y, w: cross_entropy(p, y, w, label_smoothing=1.0), r"label_smoothing=1\.0"),
        (lambda p, y, w: cross_entropy(p, y, w, z_loss=-1.0), r"z_loss=-1\.0"),
        (lambda p, y, w: cross_entropy(p, y, w, chunks=0), "chunks=0"),
        (lambda p, y, w: gather_positions(p.x, y[:2]), r"positions \(2, 7\)"),
    ],
)
def test_what_is_refused(case, call, message):
    x, kernel, _, labels, weights = case
    with pytest.raises(ValueError, match=message):
        call(DeferredLogits(x, kernel), labels, weights)


def test_a_sequence_that_is_split_over_devices_is_cut_into_chunks_of_every_device():
    mesh = build_mesh(MeshConfig(data=2, context=4))
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (4, 16, 8))
    kernel = jax.random.normal(keys[1], (12, 8))
    labels = jnp.arange(64, dtype=jnp.int32).reshape(4, 16) % 12
    weights = jnp.ones((4, 16)).at[:, :3].set(0)

    def loss(x, kernel, placed=UNSHARDED):
        projection = DeferredLogits(x, kernel, sharding=placed)
        return cross_entropy(projection, labels, weights, chunks=2).loss_sum

    def split(x, kernel):
        placed = MeshSharding(mesh)
        return jax.value_and_grad(loss, argnums=(0, 1))(placed.constrain(x, "BTD"), kernel, placed)

    compiled = jax.jit(split).lower(x, kernel).compile()
    wanted = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(x, kernel)
    chex.assert_trees_all_close(compiled(x, kernel), wanted, rtol=1e-05, atol=1e-05)
    exchanged = {c.kind for c in hlo.collectives(hlo.parse(compiled.as_text()))}
    # of the loss and of the kernel's gradient; no token leaves its device
    assert exchanged == {"all-reduce"}


@pytest.mark.parametrize("chunks", daily([1, 3], [3]))
def test_log_probs_of_tokens_and_their_gradients_are_those_of_whole_logits(chunks):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 7, 4)).astype(np.float32)
    kernel = rng.normal(size=(11, 4)).astype(np.float32)
    labels = rng.integers(0, 11, (2, 7))
    weights = rng.normal(size=(2, 7)).astype(np.float32)

    def ours(x, kernel):
        return (token_log_probs(DeferredLogits(x, kernel), labels, chunks=chunks) * weights).sum()

    def plain(x, kernel):
        each = jax.nn.log_softmax(jnp.einsum("btd,vd->btv", x, kernel))
        return (jnp.take_along_axis(each, labels[..., None], axis=-1)[..., 0] * weights).sum()

    both = jax.jit(lambda *x: [jax.value_and_grad(f, (0, 1))(*x) for f in (ours, plain)])
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, *both(x, kernel))


@pytest.mark.parametrize("chunks", daily([1, 3], [3]))
def test_losses_of_rows_beside_their_sum(case, chunks):
    x, kernel, bias, labels, weights = case

    @jax.jit
    def losses(x, labels, weights):
        projection = DeferredLogits(x, kernel, bias)
        run = functools.partial(cross_entropy, projection, labels, weights, chunks=chunks)
        due = [plain(x[b], kernel, bias, labels[b], weights[b])[1] for b in range(B)]
        return run(), run(by_row=True), due

    whole, by_row, due = losses(x, labels, weights)
    np.testing.assert_allclose(by_row.nll_B, due, rtol=1e-5)
    np.testing.assert_allclose(
        [by_row.loss_sum, by_row.nll_sum], [whole.loss_sum, whole.nll_sum], rtol=1e-6
    )
    assert whole.nll_B is None
