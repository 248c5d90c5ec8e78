"""The dense layer: an einsum, with weight shape and initialization derived from its equation."""

import math
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flaxformer_lite.config import Execution, InitConfig
from flaxformer_lite.nn.functions import quantized
from flaxformer_lite.nn.functions.device_ops import ops_of
from flaxformer_lite.nn.functions.sharding import adapter_of, sharding_of

# What runs in numbers of few bits: the matrices of layers, but no router, which chooses by small
# differences.
IN_LAYER = re.compile(r"(^|/)(layer|block)_\d+/(?!.*(router|shared_gate)/kernel$)")


def make_initializer(
    cfg: InitConfig, fan_in: int, fan_out: int, *, residual: bool = False, gain: float = 1.0
) -> Callable:
    """Builds the initializer that a record names.

    Args:
      cfg: the distribution.
      fan_in, fan_out: inputs summed for one output, and outputs that one input contributes to.
      residual: whether the layer writes to the residual stream, for `normal_residual`.
      gain: factor on the stddev, for `fan_in` only.
    """
    if cfg.kind == "xavier":
        # Glorot and Bengio 2010, equation 16.
        limit = math.sqrt(6 / (fan_in + fan_out))
        return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -limit, limit)
    if cfg.kind == "fan_in":
        return nn.initializers.normal(gain * fan_in**-0.5)
    shrink = 1.0
    if residual and cfg.kind == "normal_residual":
        # GPT-2 (Radford et al. 2019, section 2.3); each layer adds two branches to the residual
        # stream.
        shrink = (2 * cfg.layers) ** -0.5
    return nn.initializers.normal(cfg.stddev * shrink * cfg.width_ratio**-0.5)


class Letters:
    """The letters of an equation such as `BTD,DNH->BTNH`.

    `x`, `kernel` and `out` belong to its arrays; `ins` are the kernel's summed axes
    (D), and `outs` the others (NH).
    """

    def __init__(self, equation: str):
        operands, self.out = equation.split("->")
        self.x, self.kernel = operands.split(",")
        self.ins = "".join(letter for letter in self.kernel if letter not in self.out)
        self.outs = "".join(letter for letter in self.kernel if letter in self.out)

    @staticmethod
    def shape(letters: str, sizes: dict[str, int]) -> tuple[int, ...]:
        """Returns the size of each letter."""
        return tuple(sizes[letter] for letter in letters)


def prepend_axes(part: jax.Array, x: jax.Array) -> jax.Array:
    """Adds leading axes of size 1 to an array of the last axes of x, so that it broadcasts."""
    return part.reshape((1,) * (x.ndim - part.ndim) + part.shape)


class Einsum(nn.Module):
    """y = einsum(equation, x, kernel) + bias, in the dtype of x.

    Attributes:
      equation: such as `BTD,DNH->BTNH`, with summed letters last in the input and first in the
        weight.
      sizes: size of each letter of the weight.
      bias: whether to add a bias over the output letters of the weight.
      initial: the distribution that the weight starts from.
      execution: gives the weight's dtype.
      residual: whether the output is added to the residual stream (see `initializer`).
      gain: see `initializer`.
    """

    equation: str
    sizes: dict[str, int]
    bias: bool = False
    initial: InitConfig = InitConfig()
    execution: Execution = Execution()
    residual: bool = False
    gain: float = 1.0

    @nn.compact
    def __call__(self, x: Any, prepare: Callable[[Any], jax.Array] | None = None) -> jax.Array:
        """Applies the layer to an array `x`, or to an elementwise `prepare(x)` of a tree of arrays.

        The layer may then compute `prepare(x)` again in the backward pass.
        """
        run = self.execution
        path = "/".join((*self.path, "kernel"))
        is_in_layer = IN_LAYER.search(path) is not None
        adapter = adapter_of(run)
        is_trained_whole = adapter is not None and adapter.trains(path)
        if adapter is not None and not adapter.adapts(path):
            adapter = None
        is_quantized = run.quantize != "none" and is_in_layer and not is_trained_whole
        is_rounded = run.matmul != "float" and is_in_layer
        # Only the plain product can compute its inputs again; the others read x more than once.
        if prepare is not None and (adapter is not None or is_quantized or is_rounded):
            x = prepare(x)
            prepare = None
        if is_quantized:
            kernel, y = self._quantized_product(x)
        elif is_rounded:
            kernel = self._kernel(x.dtype)
            noise = self._noise(x)
            y = quantized.matmul(x, kernel, noise, self._num_summed, run.matmul)
        elif self.has_variable("params", "kernel_OI"):
            y = self._turned_product(x if prepare is None else prepare(x))
        else:
            kernel = self._kernel(jax.tree.leaves(x)[0].dtype)
            y = ops_of(sharding_of(run)).product(x, kernel, self._num_summed, prepare)
        bias = None
        if self.bias:
            bias = self._bias(y.dtype)
        if adapter is not None:
            return adapter.apply(self, x, kernel, y, bias)
        if bias is None:
            return y
        return y + bias

    # Interceptors see calls of the layer, but not of its parts, which are nn.nowrap.

    @property
    def _num_summed(self) -> int:
        """The number of axes of the weight that are summed, its first ones."""
        return len(Letters(self.equation).ins)

    @nn.nowrap
    def _initializer(self) -> Callable:
        letters = Letters(self.equation)
        fan_in = math.prod(letters.shape(letters.ins, self.sizes))
        fan_out = math.prod(letters.shape(letters.outs, self.sizes))
        return make_initializer(
            self.initial, fan_in, fan_out, residual=self.residual, gain=self.gain
        )

    @property
    def _shape(self) -> tuple[int, ...]:
        letters = Letters(self.equation)
        return letters.shape(letters.kernel, self.sizes)

    @nn.nowrap
    def _kernel(self, dtype: DTypeLike) -> jax.Array:
        """Returns the weight in the dtype that it is multiplied in, gathered if data split it."""
        stored = self.param(
            "kernel", self._initializer(), self._shape, jnp.dtype(self.execution.param_dtype)
        )
        # Cast here alone, as qwix intercepts it: a quantized kernel has no other casts.
        kernel = jnp.asarray(stored, dtype)
        return sharding_of(self.execution).gather_weight(kernel, "/".join((*self.path, "kernel")))

    @nn.nowrap
    def _turned_product(self, x: jax.Array) -> jax.Array:
        """Multiplies x by the weight that `prepare_weights` holds with its outputs first."""
        leading = x.shape[: x.ndim - self._num_summed]
        x_RI = x.reshape(math.prod(leading), -1)
        ops = ops_of(sharding_of(self.execution))
        kernel_OI: jax.Array = self.get_variable("params", "kernel_OI").astype(x.dtype)
        y_RO = ops.turned_product(x_RI, kernel_OI)
        return y_RO.reshape(*leading, *self._shape[self._num_summed :])

    @nn.nowrap
    def _quantized_product(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns a quantized weight, dequantized, and its product with x."""
        scheme = self.execution.quantize
        summed = self._num_summed
        held = QuantizedKernel(self._shape, summed, scheme, self._initializer(), name="kernel")
        rounds = self.execution.matmul == "int8"
        rows: quantized.OutputRows | None = held.get_variable("params", "rows")
        if rows is None:
            parts = held()
            kernel = quantized.dequantize(*parts, scheme).astype(x.dtype)
            return kernel, quantized.quantized_matmul(x, *parts, summed, scheme, rounds)
        kernel = rows.dequantize().astype(x.dtype).reshape(self._shape)
        leading = x.shape[: x.ndim - summed]
        y = quantized.multiply_rows(x.reshape(math.prod(leading), -1), rows, 8 if rounds else 16)
        return kernel, y.astype(x.dtype).reshape(*leading, *self._shape[summed:])

    @nn.nowrap
    def _noise(self, x: jax.Array) -> jax.Array | None:
        """Draws the noise that rounds gradients; None where nothing is trained."""
        if not (quantized.RECIPES[self.execution.matmul].draws and self.has_rng("dropout")):
            return None
        return jax.random.uniform(self.make_rng("dropout"), x.shape[: x.ndim - self._num_summed])

    @nn.nowrap
    def _bias(self, dtype: DTypeLike) -> jax.Array:
        """Returns the bias, over the output letters of the weight, with ones for all others."""
        letters = Letters(self.equation)
        shape = []
        broadcast = []
        for letter in letters.out:
            if letter in letters.x:
                broadcast.append(1)
            else:
                shape.append(self.sizes[letter])
                broadcast.append(self.sizes[letter])
        stored = jnp.dtype(self.execution.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, tuple(shape), stored)
        return bias.astype(dtype).reshape(broadcast)


class QuantizedKernel(nn.Module):
    """A matrix that is not trained, as the codes and scales of nn/functions/quantized.py.

    Attributes:
      shape: of the matrix.
      ins: number of axes of its inputs.
      scheme: `int8`, `int4` or `nf4`.
      initial: the distribution that the matrix starts from.
      stacked: whether the first axis of the shape counts matrices.
    """

    shape: tuple[int, ...]
    ins: int
    scheme: str
    initial: Callable[..., jax.Array]
    stacked: bool = False

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        """Returns the codes and the scales.

        Both are initialized, from two drawings, for plans and tests; a run reads them.
        """

        def part(key: jax.Array, which: int) -> jax.Array:
            kernel = self.initial(key, self.shape, jnp.float32)
            return quantized.quantize_stack(kernel, self.ins, self.scheme, int(self.stacked))[which]

        return self.param("codes", part, 0), self.param("scale", part, 1)
