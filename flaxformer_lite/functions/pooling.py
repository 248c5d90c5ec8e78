"""Pooling of token vectors into one sentence vector."""

import jax
import jax.numpy as jnp


def mean_pool(x_BTD: jax.Array, keep_BT: jax.Array) -> jax.Array:
    """Pools token vectors into the unit vector along their mean, y / |y|, y = sum_t keep_t x_t, as float32 [B, D].

    Args:
      x_BTD: hidden states.
      keep_BT: nonzero where a token counts; an attention mask. Where none does, the result is zero.

    Reference: Reimers and Gurevych 2019, "Sentence-BERT", section 3 (arXiv:1908.10084).
    """
    keep_BT = (keep_BT != 0).astype(jnp.float32)
    sum_BD = jnp.einsum("BTD,BT->BD", x_BTD.astype(jnp.float32), keep_BT, precision=jax.lax.Precision.HIGHEST)
    length_B1 = jnp.linalg.norm(sum_BD, axis=-1, keepdims=True)
    return sum_BD / jnp.maximum(length_B1, jnp.finfo(jnp.float32).tiny)
