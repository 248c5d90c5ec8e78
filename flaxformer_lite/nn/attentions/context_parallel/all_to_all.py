"""Devices exchange lengths for heads, attend with their own heads, and exchange back.

Each attends over the whole sequence, by any implementation.

Reference: Jacobs et al. 2023, DeepSpeed Ulysses (arXiv:2309.14509).
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.nn.attentions.arguments import Arguments


def spread(attend: Callable) -> Callable:
    """Wraps `attend` for a sequence split by `args.sharding`, with heads split meanwhile.

    Key heads that do not divide are repeated. Values, gradients and dropout are those of one
    device.

    Args:
      attend: an implementation from this folder.

    Returns:
      A function of the same arguments. It calls `attend` directly if there are `q_index` or
      `k_index` (a cache), or the length does not divide.
    """

    def attend_exchanged(
        q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, args: Arguments, /
    ) -> jax.Array:
        count = args.sharding.num_shards("T").count
        over_heads = args.sharding.over_heads()
        parts = over_heads.num_shards("N").count
        if q_BTNH.shape[1] % count or k_BSKH.shape[1] % count or args.has_slots:
            return attend(q_BTNH, k_BSKH, v_BSKH, args)
        if q_BTNH.shape[2] % parts:
            raise ConfigError(
                f"mesh.context={count}, mesh.context_attention='all_to_all': {q_BTNH.shape[2]}"
                f" heads do not divide by the {parts} devices of mesh.context and mesh.tensor; set"
                " mesh.context_attention=ring."
            )
        times = parts // math.gcd(k_BSKH.shape[2], parts)
        if times > 1:
            k_BSKH = jnp.repeat(k_BSKH, times, axis=2)
            v_BSKH = jnp.repeat(v_BSKH, times, axis=2)
        q_BTNH = over_heads.constrain(q_BTNH, "BTNH")
        k_BSKH = over_heads.constrain(k_BSKH, "BSKH")
        v_BSKH = over_heads.constrain(v_BSKH, "BSKH")
        local_args = dataclasses.replace(args, sharding=over_heads)
        out_BTNH = over_heads.constrain(attend(q_BTNH, k_BSKH, v_BSKH, local_args), "BTNH")
        return args.sharding.constrain(out_BTNH, "BTNH")

    return attend_exchanged
