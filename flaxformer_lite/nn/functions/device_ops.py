"""Operations that differ by kind of device. Callers say what they compute, and `ops_of` chooses.

None of it changes a number by more than rounding; nn/functions/tuning.py has what it is made of.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from flaxformer_lite.nn.functions import tuning
from flaxformer_lite.nn.functions.sharding import ActivationSharding
from flaxformer_lite.types import Tree

# Names of results that rematerialization may keep for the backward pass (nn/modules/stack.py).
ATTENTION = "attention"  # the heads' output, with the log-sums that a kernel's backward pass reads
QKV = "qkv"  # queries, keys and values, rotated
OUT = "out"  # attention's output projection
MLP = "mlp"  # the inputs of the activation, and of its gate


@overload
def name_arrays(name: str, x: jax.Array, /) -> jax.Array: ...


@overload
def name_arrays(
    name: str, x: jax.Array, y: jax.Array, /, *more: jax.Array
) -> tuple[jax.Array, ...]: ...


def name_arrays(name: str, *arrays: jax.Array) -> jax.Array | tuple[jax.Array, ...]:
    """Names arrays for the policies of `model.remat`, and changes nothing else.

    Returns:
      A tuple, or the one array.
    """
    if len(arrays) == 1:
        return checkpoint_name(arrays[0], name)
    return tuple(checkpoint_name(x, name) for x in arrays)


class Dropout(Protocol):
    """A layer that drops numbers if it is `on`."""

    @property
    def on(self) -> bool: ...

    def __call__(self, x: jax.Array) -> jax.Array: ...


class DeviceOps:
    """The operations of a device for which nothing is tuned, and the interface of the others.

    Attributes:
      sharding: where the arrays live.
      compares_labels: whether the logits of labels are selected by comparison instead of looked up.
      gathers_scores: whether scores of relative positions are gathered instead of shifted into
        place. A shift is a copy instead of a gather forward and a scatter backward.
      exchanges_equal_parts: whether devices exchange parts of one size.
      grouped_product: how groups of rows meet their matrices, a name of
        nn/functions/grouped_matmul.py.
    """

    compares_labels = False
    gathers_scores = False
    exchanges_equal_parts = False
    grouped_product = "ragged_dot"

    def __init__(self, sharding: ActivationSharding):
        self.sharding = sharding

    def product(
        self,
        x: Any,
        kernel: jax.Array,
        num_summed: int,
        prepare: Callable[[Any], jax.Array] | None = None,
    ) -> jax.Array:
        """Computes `tensordot(x, kernel, num_summed)`, or of `prepare(x)`, in the kernel's dtype.

        Args:
          x: [..., I], where I may be several axes; a tree of such arrays for `prepare`.
          kernel: [I, O], where O may be several axes.
          num_summed: the number of axes I.
          prepare: elementwise; one CPU computes it again in the backward pass.
        """
        if prepare is not None:
            x = prepare(x)
        axes = tuple(range(x.ndim - num_summed, x.ndim)), tuple(range(num_summed))
        return jax.lax.dot_general(x, kernel, (axes, ((), ())), preferred_element_type=x.dtype)

    def turned_product(self, x_RI: jax.Array, kernel_OI: jax.Array) -> jax.Array:
        """Computes `x @ kernel.T`, of a matrix whose inputs are its longer axis."""
        return tuning.multiply_turned(x_RI, kernel_OI)

    def product_in_float32(
        self, a: jax.Array, b: jax.Array, axes: tuple[int, int] | tuple[tuple[int, ...], ...]
    ) -> jax.Array:
        """Computes `tensordot(a, b, axes)` with a float32 sum of products in the arrays' dtype."""
        return jnp.tensordot(a, b, axes, preferred_element_type=jnp.float32)

    def feed_forward(
        self,
        products: Sequence[jax.Array],
        activate: Callable[..., jax.Array],
        down: Callable[..., jax.Array],
        dropout: Dropout,
    ) -> jax.Array:
        """Computes `down(dropout(activate(*products)))`.

        Args:
          products: [B, T, F] each.
          activate: elementwise.
          down: a layer, which may be asked to compute its input again (`product`).
          dropout: of its input.
        """
        # Computed before they are named: what a policy keeps is an array already.
        inputs = tuple(name_arrays(MLP, x) for x in self.compute_once(tuple(products)))
        return self._down(inputs, functools.partial(self._hidden, activate), down, dropout)

    def _hidden(
        self, activate: Callable[..., jax.Array], inputs: tuple[jax.Array, ...]
    ) -> jax.Array:
        return self.sharding.constrain(activate(*inputs), "BTF")

    def _down(
        self,
        inputs: tuple[jax.Array, ...],
        hidden: Callable[[Tree], jax.Array],
        down: Callable[..., jax.Array],
        dropout: Dropout,
    ) -> jax.Array:
        # The input and its gradient are computed once.
        return down(dropout(self.compute_once(hidden(tuning.hold_gradient(inputs)))))

    def add_outer_products(
        self, total_VD: jax.Array | None, d_y: jax.Array, x: jax.Array
    ) -> jax.Array:
        """Computes `total + d_y^T x`, float32 [V, D], summed over tokens; a total of None is zero.

        Args:
          total_VD: the sum so far.
          d_y: [..., V].
          x: [..., D].
        """
        tokens = tuple(range(x.ndim - 1))
        product_VD = self.product_in_float32(d_y, x, (tokens, tokens))
        if total_VD is None:
            return product_VD
        return total_VD + product_VD

    def compute_once(self, arrays: Tree) -> Tree:
        """Returns arrays that are computed once, and so is their gradient."""
        return tuning.compute_once(arrays, self.sharding)

    def compute_gradient_once(self, arrays: Tree) -> Tree:
        """Returns arrays whose gradient alone is computed once."""
        return tuning.compute_gradient_once(arrays, self.sharding)

    def compute_after(self, done: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        """Returns `x`, to be computed only after `done`.

        What is made of x, such as a chunk of logits, then never exists beside what `done` is made
        of.
        """
        if not done:
            return x
        return jax.lax.optimization_barrier((x, *done))[0]

    def compute_after_sum(self, total_VD: jax.Array, x: jax.Array) -> jax.Array:
        """Returns `x`, to be computed only after a large sum of products."""
        return self.compute_after([total_VD], x)

    def draw(self, key: jax.Array, p: float, shape: tuple[int, ...]) -> jax.Array:
        """Draws `jax.random.bernoulli(key, p, shape)`."""
        return tuning.bernoulli(key, p, shape, self.sharding)


class GpuOps(DeviceOps):
    """On a GPU, labels are compared.

    It fuses the comparison with other passes over the logits, while the gradient of a lookup is a
    scatter into all of them, which costs another pass. A CPU sums comparisons on one core.
    """

    compares_labels = True


class TpuOps(DeviceOps):
    """On a TPU, megablox computes the gradient by the matrices of groups.

    The compiler multiplies every row once for each group there, which it estimates at 78 ms for
    36,864 x 4096 x 14336 and 8 groups on a v5p, 9 ms at the peak.
    """

    grouped_product = "megablox"


class CpuOps(DeviceOps):
    """On CPUs, scores are gathered and groups of rows are multiplied in blocks.

    Gain: a gather takes 0.4 to 0.6 of the time of a shift, with its gradient, for 64 to 512 tokens.
    `jax.lax.ragged_dot` multiplies every row with every matrix: 8 groups of 256 rows in blocks take
    a fifth of the time forwards and a third with gradients (2,048 x 256 x 512). XLA:CPU has no
    ragged_all_to_all.
    """

    gathers_scores = True
    exchanges_equal_parts = True
    grouped_product = "blocks"

    def product_in_float32(
        self, a: jax.Array, b: jax.Array, axes: tuple[int, int] | tuple[tuple[int, ...], ...]
    ) -> jax.Array:
        # XLA:CPU lacks some bfloat16 products with a float32 result.
        return super().product_in_float32(a.astype(jnp.float32), b.astype(jnp.float32), axes)


class OneCpuOps(CpuOps):
    """One CPU that does all the work; nn/functions/tuning.py says what each gains."""

    def product(
        self,
        x: Any,
        kernel: jax.Array,
        num_summed: int,
        prepare: Callable[[Any], jax.Array] | None = None,
    ) -> jax.Array:
        # Another library's weight, such as qwix's, takes its place in dot_general alone.
        if not isinstance(kernel, jax.Array):
            return super().product(x, kernel, num_summed, prepare)
        return tuning.matmul_of_matrices(x, kernel, num_summed, prepare)

    def _down(
        self,
        inputs: tuple[jax.Array, ...],
        hidden: Callable[[Tree], jax.Array],
        down: Callable[..., jax.Array],
        dropout: Dropout,
    ) -> jax.Array:
        if dropout.on:
            return super()._down(inputs, hidden, down, dropout)
        return down(inputs, prepare=hidden)

    def add_outer_products(
        self, total_VD: jax.Array | None, d_y: jax.Array, x: jax.Array
    ) -> jax.Array:
        # As in matmul_of_matrices.
        d_y = d_y.reshape(-1, d_y.shape[-1])
        x = x.reshape(-1, x.shape[-1])
        product = functools.partial(self.product_in_float32, axes=((0,), (0,)))
        if total_VD is None:
            return product(d_y, x)
        return tuning.accumulate_product(total_VD, d_y, x, product)

    def compute_after(self, done: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        return tuning.schedule_after(done, x)

    def compute_after_sum(self, total_VD: jax.Array, x: jax.Array) -> jax.Array:
        return tuning.schedule_after_sum(total_VD, x)


PLATFORMS = {"cpu": CpuOps, "gpu": GpuOps, "tpu": TpuOps}


@functools.lru_cache(maxsize=64)  # asked by every layer of a traced step
def ops_of(sharding: ActivationSharding) -> DeviceOps:
    """Returns the operations of the devices that a sharding places activations on."""
    if sharding.is_single_cpu:
        return OneCpuOps(sharding)
    return PLATFORMS.get(sharding.platform, DeviceOps)(sharding)
