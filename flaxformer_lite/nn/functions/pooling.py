"""Pooling of token vectors into one sentence vector."""

import jax
import jax.numpy as jnp


def mean_pool(x_BTD: jax.Array, keep_BT: jax.Array, *, unit: bool = True) -> jax.Array:
    """Pools token vectors into the unit vector along their mean, float32 [B, D].

    That is y / |y|, y = sum_t keep_t x_t.

    Args:
      x_BTD: hidden states.
      keep_BT: nonzero where a token counts; an attention mask. Where none does, the result is zero.
      unit: whether the vector has length one; else it is the mean itself.

    Reference: Reimers and Gurevych 2019, "Sentence-BERT", section 3 (arXiv:1908.10084).
    """
    keep_BT = (keep_BT != 0).astype(jnp.float32)
    sum_BD = jnp.einsum(
        "BTD,BT->BD", x_BTD.astype(jnp.float32), keep_BT, precision=jax.lax.Precision.HIGHEST
    )
    return (
        to_unit_length(sum_BD)
        if unit
        else sum_BD / jnp.maximum(keep_BT.sum(axis=-1, keepdims=True), 1.0)
    )


def first_token(mask_BT: jax.Array) -> jax.Array:
    """Keeps the mask's first column only; `mean_pool` then takes the first token's vector."""
    return jnp.asarray(mask_BT).at[:, 1:].set(0)


def shortened(x: jax.Array, width: int) -> jax.Array:
    """Returns unit vectors along the first `width` components, [..., width].

    Reference: Kusupati et al. 2022 (arXiv:2205.13147).
    """
    return to_unit_length(x[..., :width])


def to_unit_length(x: jax.Array) -> jax.Array:
    """Divides vectors by their lengths; zeros stay zeros."""
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), jnp.finfo(jnp.float32).tiny)
