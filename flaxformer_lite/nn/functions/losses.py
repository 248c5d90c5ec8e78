"""Cross entropy with integer labels, from logits or fused with the projection to the vocabulary."""

import dataclasses
import functools
import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.nn.functions.device_ops import ops_of
from flaxformer_lite.nn.functions.quantized import OutputRows
from flaxformer_lite.nn.functions.sharding import UNSHARDED, ActivationSharding
from flaxformer_lite.types import Tree


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class DeferredLogits:
    """Logits that are not yet multiplied out: `cap tanh((scale x W^T + b) / cap)`.

    A softcap of 0 caps nothing.
    """

    x: jax.Array  # features [..., D], in the dtype of the matmul (a CPU computes it in float32)
    kernel_VD: jax.Array  # the vocabulary's vectors; tied embeddings are passed as they are
    bias_V: jax.Array | None = None
    rows: OutputRows | None = None  # the kernel in int8, to generate
    scale: float = field(default=1.0, metadata={"static": True})  # T5's D ** -0.5
    softcap: float = field(default=0.0, metadata={"static": True})
    sharding: ActivationSharding = field(default=UNSHARDED, metadata={"static": True})

    def logits(self) -> jax.Array:
        """Computes all logits, float32 [..., V]."""
        return self.from_dots(self.dot(self.x, self.kernel_VD.astype(self.x.dtype), (-1, 1)))

    def from_dots(self, dots: jax.Array) -> jax.Array:
        """Computes logits from the bare dot products `x W^T`."""
        if dots.ndim > 2:
            dots = self.sharding.constrain(dots, "BTV" if dots.ndim == 3 else "BQTV")
        logits = dots * self.scale
        if self.bias_V is not None:
            logits += jnp.expand_dims(self.bias_V.astype(jnp.float32), range(logits.ndim - 1))
        if not self.softcap:
            return logits
        return self.softcap * jnp.tanh(logits / self.softcap)

    def dot(
        self, a: jax.Array, b: jax.Array, axes: tuple[int, int] | tuple[tuple[int, ...], ...]
    ) -> jax.Array:
        """Multiplies a and b, summed over `axes`, in float32."""
        return ops_of(self.sharding).product_in_float32(a, b, axes)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SoftTargets:
    """A teacher's logits for the same tokens, which the loss mixes in.

    Reference: Hinton et al. 2015, section 2 (arXiv:1503.02531).

    Attributes:
      projection: of the teacher; no gradient reaches it.
      temperature: t, which divides the logits of both.
      weight: a, in `(1 - a) loss + a t^2 KL(p || q)`, with p and q the teacher's and our
        distribution at temperature t.
    """

    projection: DeferredLogits
    temperature: float = field(default=1.0, metadata={"static": True})
    weight: float = field(default=0.5, metadata={"static": True})

    def divergence(self, logits: jax.Array) -> jax.Array:
        """Computes `t^2 KL(p || q)` per token from our logits [..., V]."""
        log_p = jax.nn.log_softmax(self.projection.logits() / self.temperature)
        log_q = jax.nn.log_softmax(logits / self.temperature)
        return self.temperature**2 * (jnp.exp(log_p) * (log_p - log_q)).sum(axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CrossEntropy:
    """Sums over tokens, so that those of microbatches, devices and hosts add up exactly.

    Divide once, by the global weight. All are float32 scalars except `nll_B`.

    Attributes:
      loss_sum: the loss to minimize, with smoothing and z-loss; the only one with a gradient.
      nll_sum: the negative log-likelihood in nats, for perplexity and bits per byte.
      weight_sum: the total weight of the tokens.
      correct_sum: the total weight of the tokens whose label has the highest logit.
      soft_sum: with a teacher, t^2 times the KL divergence from its distribution.
      nll_B: with `by_row`, the negative log-likelihood of each row, float32 [B].
    """

    loss_sum: jax.Array
    nll_sum: jax.Array
    weight_sum: jax.Array
    correct_sum: jax.Array
    soft_sum: jax.Array | None = None
    nll_B: jax.Array | None = None


class _Options(NamedTuple):
    """The options of `cross_entropy`, and where the logits live."""

    z_loss: float
    label_smoothing: float
    chunks: int
    sharding: ActivationSharding
    by_row: bool = False


def cross_entropy(
    projection: DeferredLogits | jax.Array,
    labels: jax.Array,
    weights: jax.Array | None = None,
    /,
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    soft: SoftTargets | None = None,
    chunks: int = 4,
    by_row: bool = False,
) -> CrossEntropy:
    """Sums the weighted cross entropy with label smoothing and z-loss, in float32.

    The sum is that of `w [(1 - e)(lse - z_y) + e mean_v(lse - z_v) + z_loss lse^2]`, `lse = log
    sum_v exp z_v`.

    Given a `DeferredLogits`, the logits of only one chunk of tokens exist at a time, and only once:
    if the loss is differentiated, the forward pass turns them into gradients straight away. The
    chunks divide the last axis of tokens, so a batch split over devices stays split; they are
    unrolled, as XLA parallelizes loops badly.

        >>> projection = DeferredLogits(jnp.ones((2, 6, 4)), jnp.zeros((10, 4)))
        >>> ce = cross_entropy(projection, jnp.zeros((2, 6), jnp.int32))
        >>> round(float(ce.loss_sum / ce.weight_sum), 4)  # the log of 10
        2.3026

    Args:
      projection: features and vocabulary; or the logits themselves, [..., V], which are then held
        whole.
      labels: int32 [...]; any value is allowed where the weight is zero. -100 is not special: give
        such tokens weight 0. Others must be in 0 .. V - 1: outside of jit they are refused, and
        within it the sums are NaN.
      weights: [...], None for all ones; no gradient reaches them.
      z_loss: strength of the pull of lse towards zero, which keeps logits from drifting.
      label_smoothing: e, the share of the target spread evenly over the vocabulary.
      soft: the logits of a teacher, which also exist for one chunk at a time; needs a
        `projection` that is a DeferredLogits.
      chunks: number of chunks; 1 holds all logits. D or fewer tokens are never split, as the
        gradient of the kernel that each chunk adds, [V, D], is as large as the logits of D tokens.
      by_row: whether to return `nll_B` as well, sums over all axes of tokens but the first.

    Returns:
      Sums over all tokens. Only `loss_sum` has a gradient, in reverse mode.

    Raises:
      ValueError: shapes do not fit each other, a label is no class, or an option is out of range.

    Reference: z-loss, Chowdhery et al. 2022, PaLM, section 5 (arXiv:2204.02311); smoothing, Szegedy
    et al. 2016, section 7 (arXiv:1512.00567).
    """
    if isinstance(projection, DeferredLogits):
        x = projection.x
    else:
        x = projection
    for name, array in (("projection", x), ("labels", labels)):
        if not hasattr(array, "dtype"):
            raise TypeError(f"{name} is {type(array).__name__}: must be an array.")
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(f"labels are {labels.dtype}: must be integers, the number of each class.")
    if weights is None:
        weights = jnp.ones(x.shape[:-1], jnp.float32)
    weights = weights.astype(jnp.float32)
    _check_shapes(x.shape[:-1], labels, weights)
    classes = x.shape[-1]
    if isinstance(projection, DeferredLogits):
        classes = projection.kernel_VD.shape[0]
    _check_labels(labels, weights, classes)
    if not 0 <= label_smoothing < 1 or z_loss < 0 or chunks < 1:
        raise ValueError(
            f"label_smoothing={label_smoothing}, z_loss={z_loss}, chunks={chunks}: need 0 <="
            " label_smoothing < 1, z_loss >= 0, chunks >= 1."
        )
    weights = jax.lax.stop_gradient(weights)
    labels = labels.astype(jnp.int32)  # int8 could not index the columns of a vocabulary
    if isinstance(projection, DeferredLogits):
        pieces = pieces_of(labels.size, projection.x.shape[-1], chunks)
        options = _Options(z_loss, label_smoothing, pieces, projection.sharding, by_row)
        if soft is not None:
            teacher, _, _ = _by_shard(soft.projection, labels, weights)
            soft = dataclasses.replace(soft, projection=teacher)
        projection, labels, weights = _by_shard(projection, labels, weights)
        loss_sum, *others = _fused(options, projection, soft, labels, weights)
    else:
        options = _Options(z_loss, label_smoothing, 1, UNSHARDED, by_row)
        loss_sum, *others = _sums(options, projection.astype(jnp.float32), labels, weights)
    nll, correct_sum, *soft_sum = jax.lax.stop_gradient(others)
    if not by_row:
        return CrossEntropy(loss_sum, nll, weights.sum(), correct_sum, *soft_sum)
    nll_sum = nll.sum()
    sums = CrossEntropy(loss_sum, nll_sum, weights.sum(), correct_sum, *soft_sum)
    return dataclasses.replace(sums, nll_B=nll)


def _check_shapes(tokens: tuple[int, ...], labels: jax.Array, weights: jax.Array) -> None:
    if not tokens or labels.shape != tokens or weights.shape != tokens:
        raise ValueError(
            f"labels {labels.shape}, weights {weights.shape}: both need one entry per token,"
            f" {tokens}."
        )


def _check_labels(labels: jax.Array, weights: jax.Array, classes: int) -> None:
    """Refuses labels that are no class, if they and their weights are known here."""
    for array in (labels, weights):
        if isinstance(array, jax.core.Tracer) or not getattr(array, "is_fully_addressable", True):
            return
    known = np.asarray(labels)
    bad = known[((known < 0) | (known >= classes)) & (np.asarray(weights) != 0)]
    if bad.size:
        raise ValueError(
            f"labels hold {bad[0]}: must be in 0..{classes - 1}, the classes of the logits; give"
            " tokens that do not count weight 0."
        )


def token_log_probs(
    projection: DeferredLogits, labels: jax.Array, /, *, chunks: int = 4
) -> jax.Array:
    """Computes log P(label) of each token, `z_y - log sum_v exp z_v`, with gradients.

    As in `cross_entropy`, the logits of one chunk exist at a time; the backward pass computes them
    again.

    Args:
      projection: features [..., T, D] and the vocabulary.
      labels: int32 [..., T], ids of the vocabulary.
      chunks: number of chunks.

    Returns:
      float32 [..., T], in nats.
    """

    @jax.checkpoint
    def log_probs(x: jax.Array, labels: jax.Array) -> jax.Array:
        logits = dataclasses.replace(projection, x=x).logits()
        return _look_up(logits, labels) - jax.nn.logsumexp(logits, axis=-1)

    options = _Options(
        0.0,
        0.0,
        pieces_of(labels.size, projection.x.shape[-1], chunks),
        projection.sharding,
    )
    done: list[jax.Array] = []
    for part in _parts(options, labels):
        x = ops_of(projection.sharding).compute_after(done[-1:], projection.x[..., part, :])
        done.append(log_probs(x, labels[..., part]))
    return jnp.concatenate(done, axis=-1)


def pieces_of(tokens: int, width: int, chunks: int) -> int:
    """Returns the number of chunks that `cross_entropy` uses.

    Args:
      tokens: the number of tokens, B * T.
      width: D of the hidden states.
      chunks: the requested number; a single chunk is used if the logits are no larger than the
        gradient of the kernel.
    """
    if tokens <= width:
        return 1
    return chunks


def gather_positions(x_BTD: jax.Array, positions_BM: jax.Array, /) -> jax.Array:
    """Gathers features at the given positions, [B, M, D].

    A masked-LM head then works on M tokens instead of T.

    Args:
      x_BTD: features.
      positions_BM: int32 in 0..T-1; padding may repeat any position, given weight zero in the loss.
    """
    if positions_BM.ndim != 2 or positions_BM.shape[0] != x_BTD.shape[0]:
        raise ValueError(
            f"positions {positions_BM.shape}, x {x_BTD.shape}: must be [batch, masked] of the same"
            " batch."
        )
    return jnp.take_along_axis(x_BTD, positions_BM[:, :, None], axis=1)


def _sums(
    options: _Options,
    logits: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    soft: SoftTargets | None = None,
) -> tuple[jax.Array, ...]:
    """Sums loss, negative log-likelihood and correct labels, with weights.

    With a teacher's chunk, also sums the divergence from it.
    """
    # A label outside the vocabulary gives NaN, unless its weight is zero (-100 is common there).
    # Negative labels are moved behind the vocabulary, as a lookup would count them from its end.
    labels = jnp.where(labels < 0, logits.shape[-1], labels)
    labels = jnp.where(weights == 0, 0, labels)
    # The maximum only keeps exp from overflowing; its gradient cancels.
    top = jax.lax.stop_gradient(logits.max(axis=-1))
    if ops_of(options.sharding).compares_labels:
        label_logit = top + _select_by_comparison(logits - top[..., None], labels)
    else:
        label_logit = _look_up(logits, labels)
    lse = top + jnp.log(jnp.exp(logits - top[..., None]).sum(axis=-1))
    nll = loss = lse - label_logit
    if options.label_smoothing:
        loss = (1 - options.label_smoothing) * nll + options.label_smoothing * (
            lse - logits.mean(axis=-1)
        )
    if options.z_loss:
        loss += options.z_loss * lse**2
    summed_axes = None
    if options.by_row:
        summed_axes = tuple(range(1, nll.ndim))
    nll_sum = (weights * nll).sum(axis=summed_axes)
    loss_sum = (weights * loss).sum()
    # Not by argmax, which is slow on a CPU (sampling.likeliest).
    correct_sum = jnp.where(label_logit >= top, weights, 0).sum()
    if soft is None:
        return loss_sum, nll_sum, correct_sum
    divergence = (weights * soft.divergence(logits)).sum()
    loss_sum = (1 - soft.weight) * loss_sum + soft.weight * divergence
    return loss_sum, nll_sum, correct_sum, divergence


def _select_by_comparison(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the logits of the labels by comparison; NaN for an unknown label."""
    values = jnp.where(_is_label(logits, labels), logits, 0).sum(axis=-1)
    return jnp.where((labels >= 0) & (labels < logits.shape[-1]), values, jnp.nan)


@jax.custom_jvp
def _look_up(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Looks up the logits of the labels; NaN for an unknown label.

    Its gradient is by comparison, as a scatter would need an array of zeros first.
    """
    return jnp.take_along_axis(logits, labels[..., None], axis=-1, mode="fill")[..., 0]


@_look_up.defjvp
def _look_up_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    logits, labels = primals
    # A product and not a where(), which XLA:CPU would compute before the first chunk.
    is_label = _is_label(logits, labels).astype(logits.dtype)
    return _look_up(logits, labels), (is_label * tangents[0]).sum(axis=-1)


def _is_label(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return (
        jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1) == labels[..., None]
    )


# The functions of a chunk are compiled once for all chunks, and where no jit is around the loss,
# once for all calls.
@functools.partial(jax.jit, static_argnums=0)
def _sums_of_chunk(
    options: _Options,
    projection: DeferredLogits,
    labels: jax.Array,
    weights: jax.Array,
    soft: SoftTargets | None,
) -> tuple[jax.Array, ...]:
    return _sums(options, projection.logits(), labels, weights, soft)


# With respect to the bare products and the bias: the two products of the chain rule follow by hand,
# so that no chunk's logits outlive it.
@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.grad, argnums=(1, 2), has_aux=True)
def _gradients_of_chunk(
    options: _Options,
    dots: jax.Array,
    bias_V: jax.Array | None,
    projection: DeferredLogits,
    labels: jax.Array,
    weights: jax.Array,
    soft: SoftTargets | None,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    logits = dataclasses.replace(projection, bias_V=bias_V).from_dots(dots)
    sums = _sums(options, logits, labels, weights, soft)
    return sums[0], sums


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(
    options: _Options,
    projection: DeferredLogits,
    soft: SoftTargets | None,
    labels: jax.Array,
    weights: jax.Array,
) -> tuple[jax.Array, ...]:
    total: tuple[jax.Array, ...] = ()
    for part in _parts(options, labels):
        x = ops_of(projection.sharding).compute_after(total[:1], projection.x[..., part, :])
        soft_part = _soft_part(soft, part, x)
        chunk = dataclasses.replace(projection, x=x)
        sums = _sums_of_chunk(options, chunk, labels[..., part], weights[..., part], soft_part)
        total = _add(total, sums)
    return total


def _fused_forward(
    options: _Options, *arguments: Tree
) -> tuple[tuple[jax.Array, ...], DeferredLogits]:
    """Computes the sums, and the gradients of the loss, chunk by chunk.

    The backward pass only scales these gradients, so no logits are kept for it. A frozen vocabulary
    has none: the order of the chunks would make XLA compute it all the same.

    Args:
      options: of the loss.
      *arguments: those of `_fused`, whose leaves say whether a gradient with respect to them is
        asked for.
    """
    asked, *_ = jax.tree.map(lambda leaf: leaf.perturbed, arguments)
    is_trained = asked.kernel_VD
    projection, soft, labels, weights = jax.tree.map(lambda leaf: leaf.value, arguments)
    # Cast before the loop, once for all chunks.
    kernel_VD = projection.kernel_VD.astype(projection.x.dtype)

    total: tuple[tuple[jax.Array, ...], jax.Array | None] | None = None
    d_x: list[jax.Array] = []
    d_kernel_VD = None
    for part in _parts(options, labels):
        x = projection.x[..., part, :]
        if d_kernel_VD is not None:
            x = ops_of(projection.sharding).compute_after_sum(d_kernel_VD, x)
        else:
            x = ops_of(projection.sharding).compute_after(d_x[-1:], x)
        dots = projection.dot(x, kernel_VD, (-1, 1))
        tokens = (labels[..., part], weights[..., part], _soft_part(soft, part, x))
        (d_dots, d_bias_V), sums = _gradients_of_chunk(
            options, dots, projection.bias_V, projection, *tokens
        )
        d_dots = d_dots.astype(x.dtype)
        d_x.append(projection.dot(d_dots, kernel_VD, (-1, 0)))
        if is_trained:
            d_kernel_VD = ops_of(projection.sharding).add_outer_products(d_kernel_VD, d_dots, x)
        total = _add(total, (sums, d_bias_V))
    assert total is not None, "there is at least one chunk"
    sums, d_bias_V = total
    gradient = dataclasses.replace(
        projection, x=jnp.concatenate(d_x, axis=-2), kernel_VD=d_kernel_VD, bias_V=d_bias_V
    )

    def typed(g: jax.Array | None, p: jax.Array) -> jax.Array | None:
        """Casts a gradient, as custom_vjp wants it in the dtype of its primal."""
        if g is None:
            return None
        return g.astype(p.dtype)

    return sums, jax.tree.map(typed, gradient, projection, is_leaf=lambda g: g is None)


def _fused_backward(
    options: _Options, gradient: DeferredLogits, cotangents: tuple[jax.Array, ...]
) -> tuple[DeferredLogits, None, None, None]:
    def scale(g: jax.Array) -> jax.Array:
        return (g.astype(jnp.float32) * cotangents[0]).astype(g.dtype)

    return jax.tree.map(scale, gradient), None, None, None


_fused.defvjp(_fused_forward, _fused_backward, symbolic_zeros=True)


def _by_shard(
    projection: DeferredLogits, labels: jax.Array, weights: jax.Array
) -> tuple[DeferredLogits, jax.Array, jax.Array]:
    """Reshapes [B, T, ...] to [B, Q, T / Q, ...] if sequences are split over Q devices.

    Every chunk, cut from the last axis of tokens, then has tokens of every device.
    """
    parts = projection.sharding.num_shards("T").count
    if parts == 1 or labels.ndim != 2 or labels.shape[1] % parts:
        return projection, labels, weights
    cut = [x.reshape(x.shape[0], parts, -1, *x.shape[2:]) for x in (projection.x, labels, weights)]
    return dataclasses.replace(projection, x=cut[0]), cut[1], cut[2]


def _parts(options: _Options, labels: jax.Array) -> list[slice]:
    """Cuts the last axis of tokens into slices of nearly equal length."""
    length = labels.shape[-1]
    bounds = np.linspace(0, length, min(options.chunks, length) + 1).astype(int).tolist()
    return [slice(*pair) for pair in itertools.pairwise(bounds)]


def _soft_part(soft: SoftTargets | None, part: slice, x: jax.Array) -> SoftTargets | None:
    """Returns a teacher's features of a chunk, to be used only after `x` exists.

    Otherwise the teacher's logits of several chunks could exist at a time.
    """
    if soft is None:
        return None
    x_teacher = ops_of(soft.projection.sharding).compute_after([x], soft.projection.x[..., part, :])
    return dataclasses.replace(soft, projection=dataclasses.replace(soft.projection, x=x_teacher))


def _add(total: Tree | None, more: Tree) -> Tree:
    """Adds trees leaf by leaf; before the first chunk, the total is None or ()."""
    if not total:
        return more
    return jax.tree.map(jnp.add, total, more)
