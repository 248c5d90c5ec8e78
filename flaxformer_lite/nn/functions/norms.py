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
    y = _standardised(x.astype(jnp.float32), eps, True)
    if scale is not None:
        y = y * _widen(scale, x.ndim)
    if bias is not None:
        y = y + _widen(bias, x.ndim)
    return y.astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array, /, *, eps: float) -> jax.Array:
    """Applies root-mean-square normalization, in the dtype of x.

    y = x / sqrt(E[x^2] + eps) * scale.

    Args:
      x: [..., D], any float dtype.
      scale: [D], or the last axes of x.
      eps: added to the mean square.

    Reference: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), equation 4.
    """
    return (_standardised(x.astype(jnp.float32), eps, False) * _widen(scale, x.ndim)).astype(
        x.dtype
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _standardised(x: jax.Array, eps: float, centre: bool) -> jax.Array:
    """Computes x / sqrt(E[x^2] + eps), after subtracting E[x] if `centre`."""
    return _standardise(x, eps, centre)[0]


@_standardised.defjvp
def _standardised_jvp(
    eps: float, centre: bool, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Keeps the result and one number per row for the backward pass.

    Plain differentiation would keep three arrays.
    """
    (x,) = primals
    (d_x,) = tangents
    y, shrink = _standardise(x, eps, centre)
    if centre:
        d_x = d_x - _mean(d_x)
    return y, shrink * (d_x - y * _mean(y * d_x))


def _standardise(x: jax.Array, eps: float, centre: bool) -> tuple[jax.Array, jax.Array]:
    centred = x - _mean(x) if centre else x
    shrink = jax.lax.rsqrt(_mean(jnp.square(centred)) + eps)
    return centred * shrink, shrink


def _mean(x: jax.Array) -> jax.Array:
    return jnp.mean(x, axis=-1, keepdims=True)


def _widen(weight: jax.Array, ndim: int) -> jax.Array:
    return weight.astype(jnp.float32).reshape((1,) * (ndim - weight.ndim) + weight.shape)
