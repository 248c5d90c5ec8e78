"""Layer and root-mean-square normalisation over the last axis, computed in float32 whatever the input's dtype."""

import jax
import jax.numpy as jnp


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None = None, /, *, eps: float) -> jax.Array:
    """Layer normalisation, y = (x - E[x]) / sqrt(Var[x] + eps) * scale + bias.

    Args:
      x: [..., D], any float dtype.
      scale: [D].
      bias: [D] or None.
      eps: added to the variance.

    Returns:
      [..., D] in x's dtype.

    Reference: Ba, Kiros, Hinton, "Layer Normalization" (2016), section 3.
    """
    x32 = x.astype(jnp.float32)
    centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    y = centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + eps)
    y = y * _widen(scale, x.ndim)
    return (y if bias is None else y + _widen(bias, x.ndim)).astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array, /, *, eps: float) -> jax.Array:
    """Root-mean-square normalisation, y = x / sqrt(E[x^2] + eps) * scale.

    Args:
      x: [..., D], any float dtype.
      scale: [D].
      eps: added to the mean square.

    Returns:
      [..., D] in x's dtype.

    Reference: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), equation 4.
    """
    x32 = x.astype(jnp.float32)
    y = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (y * _widen(scale, x.ndim)).astype(x.dtype)


def _widen(weight: jax.Array, ndim: int) -> jax.Array:
    return weight.astype(jnp.float32).reshape((1,) * (ndim - 1) + weight.shape)
