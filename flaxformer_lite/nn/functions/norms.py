"""Layer and root-mean-square normalization over the last axis, in float32 for any input dtype."""

import functools

import jax
import jax.numpy as jnp


def layer_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    /,
    *,
    eps: float,
) -> jax.Array:
    """Applies layer normalization, in the dtype of x.

    y = (x - E[x]) / sqrt(Var[x] + eps) * scale + bias.

    Args:
      x: [..., D], any float dtype.
      scale, bias: [D], or the last axes of x; either may be None.
      eps: added to the variance.

    Reference: Ba, Kiros, Hinton, "Layer Normalization" (2016), section 3.
    """
    y = _standardize(x.astype(jnp.float32), eps, True)
    if scale is not None:
        y = y * _widen(scale, x.ndim)
    if bias is not None:
        y = y + _widen(bias, x.ndim)
    return y.astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array | None = None, /, *, eps: float) -> jax.Array:
    """Applies root-mean-square normalization, in the dtype of x.

    y = x / sqrt(E[x^2] + eps) * scale.

    Args:
      x: [..., D], any float dtype.
      scale: [D], or the last axes of x; None is 1.
      eps: added to the mean square.

    Reference: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), equation 4.
    """
    y = _standardize(x.astype(jnp.float32), eps, False)
    if scale is not None:
        y = y * _widen(scale, x.ndim)
    return y.astype(x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _standardize(x: jax.Array, eps: float, center: bool) -> jax.Array:
    """Computes x / sqrt(E[x^2] + eps), after it subtracts E[x] if `center`."""
    return _with_factor(x, eps, center)[0]


@_standardize.defjvp
def _standardize_jvp(
    eps: float, center: bool, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Saves the result and one number per row for the backward pass.

    Plain differentiation would save three arrays.
    """
    (x,) = primals
    (d_x,) = tangents
    y, factor = _with_factor(x, eps, center)
    if center:
        d_x = d_x - _mean(d_x)
    return y, factor * (d_x - y * _mean(y * d_x))


def _with_factor(x: jax.Array, eps: float, center: bool) -> tuple[jax.Array, jax.Array]:
    """Returns the standardized x, and the factor 1 / sqrt(E[x^2] + eps) of each row."""
    if center:
        x = x - _mean(x)
    factor = jax.lax.rsqrt(_mean(jnp.square(x)) + eps)
    return x * factor, factor


def _mean(x: jax.Array) -> jax.Array:
    return jnp.mean(x, axis=-1, keepdims=True)


def _widen(weight: jax.Array, ndim: int) -> jax.Array:
    """Reshapes a weight of the last axes to `ndim` axes, as float32."""
    return weight.astype(jnp.float32).reshape((1,) * (ndim - weight.ndim) + weight.shape)
