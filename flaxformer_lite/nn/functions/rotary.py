"""Rotary phases: the angles by which pairs of query and key dimensions are rotated."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Phase:
    """Sines and cosines of the angles of P pairs of dimensions at each position.

    YaRN's attention scaling is included.

    Attributes:
      sin_BTP, cos_BTP: float32; B is 1 if all examples share positions.
      interleaved: pairs are dimensions (2p, 2p + 1) as in GPT-J; otherwise (p, p + P) as in
        GPT-NeoX and Llama.
      query_scale_BT: factor on queries, float32; None for none.
      values: whether the values of attention rotate too, not only queries and keys.
    """

    sin_BTP: jax.Array
    cos_BTP: jax.Array
    interleaved: bool = field(default=False, metadata={"static": True})
    values: bool = field(default=False, metadata={"static": True})
    query_scale_BT: jax.Array | None = None


def phase(
    positions_BT: jax.Array,
    frequencies_P: jax.Array | np.ndarray,
    *,
    amplitude: float = 1.0,
    interleaved: bool = False,
) -> Phase:
    """Computes the phase `position * frequency` of every pair, as sines and cosines.

    Args:
      positions_BT: integer positions, B or 1 rows.
      frequencies_P: radians per position, one for each pair.
      amplitude: factor on both sine and cosine; logits of two rotated vectors grow by its square.
      interleaved: the layout of pairs, see `Phase`.
    """
    if jnp.ndim(positions_BT) != 2 or jnp.ndim(frequencies_P) != 1:
        raise ValueError(
            f"positions {jnp.shape(positions_BT)}, frequencies {jnp.shape(frequencies_P)}: must be"
            " [batch or 1, length] and [pairs]."
        )
    # In float32, as bfloat16 has no odd numbers above 256 to hold positions.
    angles_BTP = (
        positions_BT[:, :, None].astype(jnp.float32)
        * jnp.asarray(frequencies_P, jnp.float32)[None, None, :]
    )
    return Phase(amplitude * jnp.sin(angles_BTP), amplitude * jnp.cos(angles_BTP), interleaved)


def rotate(x_BTNH: jax.Array, phase: Phase, /) -> jax.Array:
    """Rotates each pair of the first 2P dimensions: `(a, b) -> (a cos - b sin, b cos + a sin)`.

    The rest is unchanged.

    The dot product of a query rotated by m and a key rotated by n depends on m - n only.

    Args:
      x_BTNH: queries or keys; the result has their dtype, the arithmetic is float32.
      phase: the phase of the same T positions.

    Raises:
      ValueError: the phase rotates more dimensions than a head has, or is of other positions.
      TypeError: `phase` is no Phase.

    Reference: Su et al. 2021, RoFormer, section 3.2.2 (arXiv:2104.09864).
    """
    if not isinstance(phase, Phase):
        raise TypeError(
            f"phase is {type(phase).__name__}: must be a Phase, as a position encoding makes it"
            " (Rope().phase(positions, head_dim))."
        )
    batch, length, pairs = phase.sin_BTP.shape
    if x_BTNH.ndim != 4 or length != x_BTNH.shape[1] or batch not in (1, x_BTNH.shape[0]):
        raise ValueError(
            f"x has shape {x_BTNH.shape}, the phase {phase.sin_BTP.shape}: x must be [batch,"
            " length, heads, head_dim], the phase [batch or 1, length, pairs]."
        )
    head_dim = x_BTNH.shape[-1]
    if 2 * pairs > head_dim:
        raise ValueError(
            f"the phase rotates {2 * pairs} dimensions but head_dim={head_dim}: make it for this"
            " head."
        )
    sin_BT1P = phase.sin_BTP[:, :, None, :]
    cos_BT1P = phase.cos_BTP[:, :, None, :]
    turned = x_BTNH[..., : 2 * pairs].astype(jnp.float32)
    rest = x_BTNH[..., 2 * pairs :]
    if phase.interleaved:
        a = turned[..., 0::2]
        b = turned[..., 1::2]
    else:
        a, b = jnp.split(turned, 2, axis=-1)
    first = a * cos_BT1P - b * sin_BT1P
    second = b * cos_BT1P + a * sin_BT1P
    if phase.interleaved:
        turned = jnp.stack([first, second], axis=-1).reshape(turned.shape)
    else:
        turned = jnp.concatenate([first, second], axis=-1)
    return jnp.concatenate([turned.astype(x_BTNH.dtype), rest], axis=-1)
