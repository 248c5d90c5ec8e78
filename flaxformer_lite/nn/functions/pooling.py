"""Pooling of token vectors into one sentence vector."""

import jax
import jax.numpy as jnp

from flaxformer_lite.config.choices import POOLINGS


def pool(
    pooling: str, x_BTD: jax.Array, mask_BT: jax.Array, *, skip: int = 0, unit: bool = True
) -> jax.Array:
    """Pools token vectors into one vector, float32 [B, D], as sentence-transformers does.

    Several ways, joined by `+`, give their vectors side by side.

    Args:
      pooling: `mean`, `first` or `last` token, `max`, `mean_sqrt`, the sum divided by the root of
        the number of tokens, or `weighted_mean`, in which token t counts t times.
      x_BTD: hidden states.
      mask_BT: nonzero for a text's tokens.
      skip: number of tokens at the beginning of each text, a prompt, that do not count. A text
        without others is zeros, in all ways; sentence-transformers takes the first of the prompt's
        tokens, or -1e9 as the largest.
      unit: whether the vector has length one.

    Reference: Muennighoff 2022, "SGPT" (arXiv:2202.08904), for the weighted mean.
    """
    _check_shapes("mask", x_BTD, mask_BT)
    x_BTD = x_BTD.astype(jnp.float32)
    real_BT = mask_BT != 0
    place_BT = jnp.cumsum(real_BT, axis=1, dtype=jnp.int32) - 1  # among the tokens of the text
    keep_BT = real_BT
    if skip:
        keep_BT = real_BT & (place_BT >= skip)
    pooled = []
    for way in pooling.split("+"):
        if way == "max":
            largest_BD = jnp.max(jnp.where(keep_BT[:, :, None], x_BTD, -jnp.inf), axis=1)
            pooled.append(jnp.where(jnp.isfinite(largest_BD), largest_BD, 0.0))
            continue
        weight_BT = _weights(way, keep_BT, place_BT, skip)
        # Highest, or a TPU would multiply float32 in bfloat16.
        total_BD = jnp.einsum("BTD,BT->BD", x_BTD, weight_BT, precision=jax.lax.Precision.HIGHEST)
        if way == "mean_sqrt":
            total_BD /= jnp.sqrt(_count(weight_BT))
        elif way in ("mean", "weighted_mean"):
            total_BD /= _count(weight_BT)
        pooled.append(total_BD)
    joined = pooled[0]
    if len(pooled) > 1:
        joined = jnp.concatenate(pooled, axis=-1)
    if unit:
        joined = to_unit_length(joined)
    return joined


def _count(weight_BT: jax.Array) -> jax.Array:
    """Returns the sum of each row's weights, [B, 1], or 1 if all of them are 0."""
    return jnp.maximum(weight_BT.sum(axis=1, keepdims=True), 1.0)


def _weights(way: str, keep_BT: jax.Array, place_BT: jax.Array, skip: int) -> jax.Array:
    """Returns the weight of each token in the sum of one way of pooling, float32."""
    match way:
        case "mean" | "mean_sqrt":
            weight_BT = keep_BT
        case "first":
            weight_BT = keep_BT & (place_BT == skip)
        case "last":
            weight_BT = keep_BT & (place_BT == place_BT[:, -1:])
        case "weighted_mean":
            weight_BT = jnp.where(keep_BT, place_BT + 1, 0)
        case _:
            raise ValueError(
                f"pooling={way!r}: no such pooling; choose from {', '.join(POOLINGS)}."
            )
    return weight_BT.astype(jnp.float32)


def mean_pool(x_BTD: jax.Array, keep_BT: jax.Array, *, unit: bool = True) -> jax.Array:
    """Pools token vectors into the unit vector along their mean, float32 [B, D].

    That is y / |y|, y = sum_t keep_t x_t.

    Args:
      x_BTD: hidden states.
      keep_BT: nonzero where a token counts; an attention mask. Where none does, the result is zero.
      unit: whether the vector has length one; else it is the mean itself.

    Reference: Reimers and Gurevych 2019, "Sentence-BERT", section 3 (arXiv:1908.10084).
    """
    _check_shapes("keep", x_BTD, keep_BT)
    keep_BT = (jnp.asarray(keep_BT) != 0).astype(jnp.float32)
    sum_BD = jnp.einsum(
        "BTD,BT->BD", x_BTD.astype(jnp.float32), keep_BT, precision=jax.lax.Precision.HIGHEST
    )
    if unit:
        return to_unit_length(sum_BD)
    return sum_BD / _count(keep_BT)


def _check_shapes(name: str, x_BTD: jax.Array, mask_BT: jax.Array) -> None:
    shape = jnp.shape(mask_BT) if mask_BT is not None else None
    if jnp.ndim(x_BTD) != 3 or shape != jnp.shape(x_BTD)[:2]:
        raise ValueError(
            f"x {jnp.shape(x_BTD)}, {name} {shape}: must be [batch, length, width] and [batch,"
            " length]."
        )


def truncate_vectors(x: jax.Array, width: int) -> jax.Array:
    """Truncates vectors to their first components, and divides them by their length.

    Args:
      x: [..., D], vectors trained for several widths (Matryoshka).
      width: the number of components, at most D.

    Returns:
      Unit vectors [..., width].

    Reference: Kusupati et al. 2022, section 3 (arXiv:2205.13147).
    """
    return to_unit_length(x[..., :width])


def to_unit_length(x: jax.Array) -> jax.Array:
    """Divides vectors by their lengths; zeros stay zeros, with a finite gradient."""
    squares = jnp.square(x).sum(axis=-1, keepdims=True)
    return x / jnp.sqrt(jnp.where(squares > 0, squares, 1))
