"""Products and weights in numbers of few bits: int8, fp8, int4 and nf4.

A number x is stored as a code of few bits, and a scale that many numbers share.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flaxformer_lite.config import ConfigError

GROUP_SIZE = 32  # numbers of a matrix in 4 bits that share a scale
MAX_INT8_CODE = 127  # the largest code, so that codes are symmetric
MAX_INT4_CODE = 7  # the same in 4 bits
INT16 = 257 * MAX_INT8_CODE  # the largest number of two such codes, the higher of which counts 256
FEW_ROWS = 64  # fewer are multiplied from the right
# The 16 codes of nf4: quantiles of a normal distribution, scaled to [-1, 1] (Dettmers et al. 2023,
# "QLoRA", appendix E).
NF4 = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)


class Recipe(NamedTuple):
    """The numbers that a matrix product of training multiplies.

    Attributes:
      forward: dtype of inputs and weights.
      gradient: dtype of the gradient of the result.
      all_products: whether the gradient of the weights is such a product too. It sums over all
        tokens of a batch, and in int8 it stays in the dtype of the activations.
    """

    forward: DTypeLike
    gradient: DTypeLike
    all_products: bool

    @property
    def draws(self) -> bool:
        """Whether gradients are rounded up or down at random, by their distance to both."""
        return jnp.issubdtype(self.gradient, jnp.integer)


RECIPES = {
    "int8": Recipe(jnp.int8, jnp.int8, all_products=False),
    "fp8": Recipe(jnp.float8_e4m3fn, jnp.float8_e5m2, all_products=True),
}


def to_codes(
    x: jax.Array, axes: tuple[int, ...], dtype: DTypeLike, noise: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Rounds x to `codes * scale`, with one scale for all numbers along the axes.

    Args:
      x: an array of floats. NaN and infinities make the scale NaN or infinite.
      axes: axes along which numbers share a scale, which follows from the largest of them.
      dtype: int8, or a float of 8 bits.
      noise: uniform numbers in [0, 1), broadcast to x, by which integers are rounded up or down
        (Gupta et al. 2015); None rounds to the nearest.

    Returns:
      The codes, and the scale in float32, of size 1 along the axes.
    """
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    largest = MAX_INT8_CODE if is_integer else float(jnp.finfo(dtype).max)
    top = jnp.max(jnp.abs(x), axis=axes, keepdims=True).astype(jnp.float32)
    # Zeros have scale 1, as 0 / 0 would be NaN.
    scale = jnp.where(top == 0, 1.0, top / largest)
    codes = x.astype(jnp.float32) / scale
    if is_integer:
        if noise is None:
            codes = jnp.round(codes)
        else:
            codes = jnp.floor(codes + noise)
    # x / scale may exceed the largest code by a rounding error, and a cast to fp8 would make NaN of
    # it.
    return jnp.clip(codes, -largest, largest).astype(dtype), scale


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def matmul(
    x: jax.Array, kernel: jax.Array, noise: jax.Array | None, summed: int, recipe: str
) -> jax.Array:
    """Computes `tensordot(x, kernel, summed)` by products of few bits, in the dtype of x.

    Every token and every output of the kernel has its own scale, and in the backward pass
    every token's gradient and every input of the kernel. Reverse mode only.

    Args:
      x: [..., inputs].
      kernel: [inputs, outputs], in the dtype of x.
      noise: uniform numbers [...], one for each token, to round its gradient; None rounds it to
        the nearest.
      summed: number of axes of the inputs.
      recipe: a name of RECIPES.

    Reference: Abdolrashidi et al. 2021, "Pareto-Optimal Quantized ResNet Is Mostly 4-bit"
    (arXiv:2105.03536), section 3; Micikevicius et al. 2022, "FP8 Formats for Deep Learning"
    (arXiv:2209.05433), section 3.
    """
    dtype = RECIPES[recipe].forward
    return _product(x, kernel, summed, dtype, dtype)


def _forward(
    x: jax.Array, kernel: jax.Array, noise: jax.Array | None, summed: int, recipe: str
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array | None]]:
    return matmul(x, kernel, noise, summed, recipe), (x, kernel, noise)


def _backward(
    summed: int,
    recipe: str,
    residuals: tuple[jax.Array, jax.Array, jax.Array | None],
    d_y: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    x, kernel, noise = residuals
    types = RECIPES[recipe]
    leading = x.ndim - summed
    outs = kernel.ndim - summed
    d_x = _product(
        d_y, _swapped(kernel, summed), outs, types.gradient, types.forward, _beside(noise, d_y)
    )
    if types.all_products:
        d_kernel = _product(_swapped(x, leading), d_y, leading, types.forward, types.gradient)
    else:
        axes = tuple(range(leading))
        d_kernel = jax.lax.dot_general(
            x, d_y, ((axes, axes), ((), ())), preferred_element_type=kernel.dtype
        )
    # custom_vjp wants a gradient of every array, also of one that is only drawn.
    d_noise = None if noise is None else jnp.zeros_like(noise)
    return d_x, d_kernel, d_noise


matmul.defvjp(_forward, _backward)


def _product(
    a: jax.Array,
    b: jax.Array,
    summed: int,
    a_dtype: DTypeLike,
    b_dtype: DTypeLike,
    noise: jax.Array | None = None,
) -> jax.Array:
    """Multiplies the codes of `a` [..., S] and `b` [S, ...], in the dtype of `a`."""
    last = tuple(range(a.ndim - summed, a.ndim))
    first = tuple(range(summed))
    a_codes, a_scale = to_codes(a, last, a_dtype, noise)
    b_codes, b_scale = to_codes(b, first, b_dtype)
    return _product_of_codes(a_codes, a_scale, b_codes, b_scale, summed).astype(a.dtype)


def _product_of_codes(
    a: jax.Array, a_scale: jax.Array, b: jax.Array, b_scale: jax.Array, summed: int
) -> jax.Array:
    """Multiplies codes [..., S] and [S, ...], and then by their scales, in float32."""
    last = tuple(range(a.ndim - summed, a.ndim))
    first = tuple(range(summed))
    rows = a.shape[: a.ndim - summed]
    columns = b.shape[summed:]
    total = jnp.int32 if jnp.issubdtype(a.dtype, jnp.integer) else jnp.float32
    a = _two_rows(a, len(rows))
    y = jax.lax.dot_general(a, b, ((last, first), ((), ())), preferred_element_type=total)
    if math.prod(rows) == 1:
        y = y[(slice(1),) * len(rows)]
    row_scale = a_scale.reshape(*rows, *(1,) * len(columns))
    column_scale = b_scale.reshape(*(1,) * len(rows), *columns)
    return y.astype(jnp.float32) * row_scale * column_scale


def _two_rows(x: jax.Array, axes: int) -> jax.Array:
    """Repeats a single row, along the last of its axes of size 1.

    XLA:CPU multiplies one row of integers by a loop of its own, 20 times slower than two: a table
    of 49,152 by 576 takes 59 ms, two rows 1.9 (jax 0.10.2, 2 cores of an Intel Xeon; in float32 8).
    """
    if not axes or math.prod(x.shape[:axes]) != 1:
        return x
    return jnp.concatenate([x, x], axis=axes - 1)


def _swapped(x: jax.Array, first: int) -> jax.Array:
    """Moves the first axes behind the others."""
    return jnp.transpose(x, (*range(first, x.ndim), *range(first)))


def _beside(noise: jax.Array | None, x: jax.Array) -> jax.Array | None:
    """Adds axes of size 1, so that the noise of tokens broadcasts over x."""
    if noise is None:
        return None
    return noise.reshape(*noise.shape, *(1,) * (x.ndim - noise.ndim))


def quantize(kernel: jax.Array, ins: int, scheme: str) -> tuple[jax.Array, jax.Array]:
    """Rounds a matrix to the codes and scales in which it is kept.

    Args:
      kernel: [inputs, outputs].
      ins: number of axes of the inputs.
      scheme: `int8` has a scale for each output; `int4` and `nf4` for each `group_size` neighbors
        on the last axis of the inputs.

    Returns:
      Codes, int8 of the kernel's shape, or uint8 with two numbers each, so that the last axis of
      the inputs is half as long; and scales, float32.

    Raises:
      ConfigError: that axis is not a multiple of 4.
    """
    if scheme == "int8":
        return to_codes(kernel, tuple(range(ins)), jnp.int8)
    axis = ins - 1
    size = kernel.shape[axis]
    if size % 4:
        raise ConfigError(
            f"quantize={scheme!r}: needs a multiple of 4 inputs, and a matrix {kernel.shape} has"
            f" {size}; use int8."
        )
    groups = _split(kernel.astype(jnp.float32), axis, group_size(size))
    top = jnp.max(jnp.abs(groups), axis=ins, keepdims=True)
    scale = jnp.where(top == 0, 1.0, top / MAX_INT4_CODE if scheme == "int4" else top)
    values = (groups / scale).reshape(kernel.shape)
    if scheme == "int4":
        # Shifted to 0..14, as two codes share an unsigned byte.
        codes = jnp.round(values) + MAX_INT4_CODE
    else:
        # The nearest code is found among the midpoints of neighbors.
        codes = jnp.searchsorted(jnp.asarray((NF4[1:] + NF4[:-1]) / 2), values)
    pairs = _split(codes.astype(jnp.uint8), axis, 2)
    low = jax.lax.index_in_dim(pairs, 0, ins, keepdims=False)
    high = jax.lax.index_in_dim(pairs, 1, ins, keepdims=False)
    return low | (high << jnp.uint8(4)), jnp.squeeze(scale, ins)


def quantize_stack(
    kernels: jax.Array, ins: int, scheme: str, stacks: int
) -> tuple[jax.Array, jax.Array]:
    """Rounds matrices by `quantize`, each by itself.

    Args:
      kernels: [..., inputs, outputs].
      ins: number of axes of the inputs.
      scheme: as in `quantize`.
      stacks: number of axes that count matrices.
    """
    quantize_one = functools.partial(quantize, ins=ins, scheme=scheme)
    for _ in range(stacks):
        quantize_one = jax.vmap(quantize_one)
    return quantize_one(kernels)


def dequantize(codes: jax.Array, scale: jax.Array, scheme: str) -> jax.Array:
    """Computes the matrix that `quantize` has rounded, in float32; or a stack of such matrices."""
    if scheme == "int8":
        return codes.astype(jnp.float32) * scale
    pairs = zip(codes.shape, scale.shape, strict=True)
    # A byte has two numbers and a group at least four, so codes and scales differ on this axis
    # alone.
    axis = next(i for i, (bytes_, groups) in enumerate(pairs) if bytes_ != groups)
    halves = jnp.stack([codes & jnp.uint8(15), codes >> jnp.uint8(4)], axis=axis + 1)
    shape = codes.shape[:axis] + (2 * codes.shape[axis],) + codes.shape[axis + 1 :]
    numbers = halves.reshape(shape)
    if scheme == "int4":
        values = numbers.astype(jnp.float32) - MAX_INT4_CODE
    else:
        values = jnp.asarray(NF4)[numbers]
    groups = _split(values, axis, group_size(shape[axis]))
    return (groups * jnp.expand_dims(scale, axis + 1)).reshape(shape)


class OutputRows(NamedTuple):
    """A matrix in int8 with its outputs first, for `multiply_rows`."""

    codes_OI: jax.Array
    scale_O: jax.Array  # float32

    def dequantize(self) -> jax.Array:
        """Returns the matrix [I, O] in float32."""
        return self.codes_OI.T.astype(jnp.float32) * self.scale_O[None]


def make_output_rows(codes: jax.Array, scale: jax.Array) -> OutputRows | None:
    """Turns around a matrix that `quantize` holds in int8; None for a stack of matrices."""
    summed = 0
    while summed < scale.ndim and scale.shape[summed] == 1:
        summed += 1
    if summed == 0:
        return None
    return OutputRows(codes.reshape(math.prod(codes.shape[:summed]), -1).T, scale.reshape(-1))


def multiply_rows(x_RI: jax.Array, rows: OutputRows, bits: int) -> jax.Array:
    """Computes `x @ matrix` [R, O] in float32 by products of integers, without a gradient.

    Args:
      x_RI: inputs of any float dtype, rounded with one scale for each row.
      rows: the matrix.
      bits: 8 rounds inputs to a code; 16 to two codes, within 2e-5 of the largest of their row.
    """
    count = len(x_RI)
    if bits == 8:
        codes_RI, scale_R1 = to_codes(x_RI, (1,), jnp.int8)
        dots_OR = _dots_of_rows(codes_RI, rows.codes_OI)[:, :count]
    else:
        top_R1 = jnp.max(jnp.abs(x_RI), axis=1, keepdims=True).astype(jnp.float32)
        scale_R1 = jnp.where(top_R1 == 0, 1.0, top_R1 / INT16)
        numbers_RI = jnp.round(x_RI.astype(jnp.float32) / scale_R1)
        high_RI = jnp.round(numbers_RI / 256)
        low_RI = jnp.minimum(numbers_RI - 256 * high_RI, MAX_INT8_CODE)
        codes_RI = jnp.concatenate([high_RI, low_RI]).astype(jnp.int8)
        both_OR = _dots_of_rows(codes_RI, rows.codes_OI)
        dots_OR = 256 * both_OR[:, :count] + both_OR[:, count:]
    return (dots_OR * rows.scale_O[:, None] * scale_R1.T).T


def _dots_of_rows(x_RI: jax.Array, codes_OI: jax.Array) -> jax.Array:
    """Computes `codes @ x.T` of int8, exactly, in float32; of one row x twice.

    XLA:CPU copies a matrix on the right in another order for each product. With few rows x, that
    takes longer than the product itself, so that they stand on the right. The barrier keeps the
    compiler from turning the product around again.

    Gain: 1.8 instead of 2.7 CPU ms for two rows and a table of 49,152 by 576 (jax 0.10.2, an Intel
    Xeon with AMX). For 512 rows the other order takes a quarter of the time.
    """
    axes = ((1,), (1,)), ((), ())
    if len(x_RI) > FEW_ROWS:
        dots_RO = jax.lax.dot_general(x_RI, codes_OI, axes, preferred_element_type=jnp.int32)
        return jax.lax.optimization_barrier(dots_RO).T.astype(jnp.float32)
    x_RI = _two_rows(x_RI, 1)
    dots_OR = jax.lax.dot_general(codes_OI, x_RI, axes, preferred_element_type=jnp.int32)
    return jax.lax.optimization_barrier(dots_OR).astype(jnp.float32)


def group_size(size: int) -> int:
    """Returns how many neighbors on an axis of this size share a scale."""
    if size <= GROUP_SIZE:
        return size
    return math.gcd(size, GROUP_SIZE)


def _split(x: jax.Array, axis: int, size: int) -> jax.Array:
    """Splits an axis into groups of this size, on an axis of their own behind it."""
    return x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def quantized_matmul(
    x: jax.Array,
    codes: jax.Array,
    scale: jax.Array,
    summed: int,
    scheme: str,
    rounds: bool = False,
) -> jax.Array:
    """Computes `tensordot(x, dequantize(codes, scale), summed)` in the dtype of x.

    If it `rounds`, x is rounded to int8 like the matrix, with a scale for each token, and integers
    are multiplied. The backward pass dequantizes the matrix again, so that it does not keep one for
    each layer, and has a gradient of x only. Reverse mode only.

    Reference: Dettmers et al. 2022, "LLM.int8()", section 2.1 (arXiv:2208.07339), vector-wise.
    """
    last = tuple(range(x.ndim - summed, x.ndim))
    first = tuple(range(summed))
    if rounds:
        x_codes, x_scale = to_codes(x, last, jnp.int8)
        return _product_of_codes(x_codes, x_scale, codes, scale, summed).astype(x.dtype)
    kernel = dequantize_after(x, codes, scale, scheme)
    return jax.lax.dot_general(x, kernel, ((last, first), ((), ())), preferred_element_type=x.dtype)


def _quantized_forward(
    x: jax.Array, codes: jax.Array, scale: jax.Array, summed: int, scheme: str, rounds: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return quantized_matmul(x, codes, scale, summed, scheme, rounds), (codes, scale)


def _quantized_backward(
    summed: int, scheme: str, rounds: bool, residuals: tuple[jax.Array, jax.Array], d_y: jax.Array
) -> tuple[jax.Array, np.ndarray, jax.Array]:
    codes, scale = residuals
    kernel = dequantize_after(d_y, codes, scale, scheme)
    outs = kernel.ndim - summed
    axes = tuple(range(d_y.ndim - outs, d_y.ndim)), tuple(range(summed, kernel.ndim))
    d_x = jax.lax.dot_general(d_y, kernel, (axes, ((), ())), preferred_element_type=d_y.dtype)
    return d_x, np.zeros(codes.shape, jax.dtypes.float0), jnp.zeros_like(scale)


def dequantize_after(x: jax.Array, codes: jax.Array, scale: jax.Array, scheme: str) -> jax.Array:
    """Dequantizes a matrix, or a stack, in the dtype of x and only once x is computed.

    Or the compiler would dequantize all matrices before a loop over tokens, or keep those of a
    forward pass for the backward pass. XLA:CPU drops barriers, but no test whether a number is NaN;
    if that one is, the results have no meaning anyway.
    """
    is_nan = jnp.isnan(x[(0,) * x.ndim]).astype(codes.dtype)
    return dequantize(codes ^ is_nan, scale, scheme).astype(x.dtype)


quantized_matmul.defvjp(_quantized_forward, _quantized_backward)
