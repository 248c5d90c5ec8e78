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
from flaxformer_lite.nn.functions import cpu_tuning, quantized
from flaxformer_lite.nn.functions.sharding import sharding_of

# What runs in numbers of few bits: the matrices of layers, but no router, which chooses by small
# differences.
IN_LAYER = re.compile(r"(^|/)(layer|block)_\d+/(?!.*(router|shared_gate)/kernel$)")


def initializer(
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
        limit = math.sqrt(6 / (fan_in + fan_out))
        return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -limit, limit)
    if cfg.kind == "fan_in":
        return nn.initializers.normal(gain * fan_in**-0.5)
    shrink = 1.0
    if residual and cfg.kind == "normal_residual":
        shrink = (2 * cfg.layers) ** -0.5
    return nn.initializers.normal(cfg.stddev * shrink * cfg.width_ratio**-0.5)


class Letters:
    """The letters of an equation such as `BTD,DNH->BTNH`.

    `ins` are those of the kernel's summed axes (D), and `outs` the others (NH).
    """

    def __init__(self, equation: str):
        operands, out = equation.split("->")
        kernel = operands.split(",")[1]
        self.ins = "".join(letter for letter in kernel if letter not in out)
        self.outs = "".join(letter for letter in kernel if letter in out)


def expand(part: jax.Array, x: jax.Array) -> jax.Array:
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

        `prepare(x)` is recomputed in the backward pass (nn/functions/cpu_tuning.py).
        """
        inputs, out = self.equation.split("->")
        x_letters, w_letters = inputs.split(",")
        shape = tuple(self.sizes[c] for c in w_letters)
        summed = sum(c not in out for c in w_letters)
        fan_in = math.prod(self.sizes[c] for c in w_letters if c not in out)
        fan_out = math.prod(self.sizes[c] for c in w_letters if c in out)
        init = initializer(self.initial, fan_in, fan_out, residual=self.residual, gain=self.gain)
        dtype = jnp.dtype(self.execution.param_dtype)
        x_dtype = jax.tree.leaves(x)[0].dtype
        run = self.execution
        sharding = sharding_of(run)
        path = "/".join((*self.path, "kernel"))
        adapter = run.adapter
        adapted = adapter is not None and adapter.adapts(path)
        is_in_layer = IN_LAYER.search(path) is not None
        is_held = (
            run.quantize != "none"
            and is_in_layer
            and not (adapter is not None and adapter.trains(path))
        )
        is_rounded = run.matmul != "float" and is_in_layer
        if (adapted or is_held or is_rounded) and prepare:
            x = prepare(x)
            prepare = None
        if is_held:
            held = HeldKernel(shape, summed, run.quantize, init, name="kernel")()
            kernel = quantized.restore(*held, run.quantize).astype(x_dtype)
        else:
            # Cast and multiplied as qwix intercepts it: a quantized kernel has no other casts, and
            # no other shape.
            kernel = jnp.asarray(self.param("kernel", init, shape, dtype), x_dtype)
            kernel = sharding.gather_weight(kernel, path)
        if is_held:
            y = quantized.held_matmul(x, *held, summed, run.quantize)
        elif is_rounded:
            y = quantized.matmul(x, kernel, self._noise(x, summed), summed, run.matmul)
        elif prepare or (sharding.tuned and sharding.is_one_device):
            product = cpu_tuning.matmul if sharding.is_single_cpu else jnp.matmul
            y = cpu_tuning.matmul_of_matrices(x, kernel, summed, prepare, product=product)
        else:
            axes = tuple(range(x.ndim - summed, x.ndim)), tuple(range(summed))
            y = jax.lax.dot_general(x, kernel, (axes, ((), ())), preferred_element_type=x.dtype)
        bias = self._bias(out, x_letters, dtype, y.dtype) if self.bias else None
        if adapted:
            return adapter.apply(self, x, kernel, y, bias)
        if bias is None:
            return y
        return y + bias

    def _noise(self, x: jax.Array, summed: int) -> jax.Array | None:
        """Draws the noise that rounds gradients; None where nothing is trained."""
        if not (quantized.RECIPES[self.execution.matmul].draws and self.has_rng("dropout")):
            return None
        return jax.random.uniform(self.make_rng("dropout"), x.shape[: x.ndim - summed])

    def _bias(self, out: str, x_letters: str, dtype: DTypeLike, y_dtype: DTypeLike) -> jax.Array:
        shape = []
        broadcast = []
        for letter in out:
            if letter in x_letters:
                broadcast.append(1)
            else:
                shape.append(self.sizes[letter])
                broadcast.append(self.sizes[letter])
        bias = self.param("bias", nn.initializers.zeros, tuple(shape), dtype)
        return bias.astype(y_dtype).reshape(broadcast)


class HeldKernel(nn.Module):
    """A matrix that is not trained, as the codes and scales of nn/functions/quantized.py.

    Attributes:
      shape: of the matrix.
      ins: number of axes of its inputs.
      form: `int8`, `int4` or `nf4`.
      initial: the distribution that the matrix starts from.
      stacked: whether the first axis of the shape counts matrices.
    """

    shape: tuple[int, ...]
    ins: int
    form: str
    initial: Callable[..., jax.Array]
    stacked: bool = False

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        """Returns the codes and the scales.

        Both are initialized, from two drawings, for plans and tests; a run reads them.
        """

        def part(key: jax.Array, which: int) -> jax.Array:
            kernel = self.initial(key, self.shape, jnp.float32)
            return quantized.hold_stack(kernel, self.ins, self.form, int(self.stacked))[which]

        return self.param("codes", part, 0), self.param("scale", part, 1)
