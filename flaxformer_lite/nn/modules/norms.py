"""The norms of nn/functions/norms.py as modules with weights."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Execution, NormConfig
from flaxformer_lite.nn.functions import norms


class Norm(nn.Module):
    """Normalizes the last axis, as its record says."""

    cfg: NormConfig = NormConfig()
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kind = self.cfg.kind
        if kind == "layer_no_affine":
            return norms.layer_norm(x, eps=self.cfg.eps)
        if kind == "rms_no_affine":
            return norms.rms_norm(x, eps=self.cfg.eps)
        dtype = jnp.dtype(self.execution.param_dtype)
        shape = x.shape[-self.cfg.weight_axes :]
        init = nn.initializers.zeros if kind == "rms_offset" else nn.initializers.ones
        scale = self.param("scale", init, shape, dtype)
        if kind == "layer":
            bias = self.param("bias", nn.initializers.zeros, shape, dtype)
            return norms.layer_norm(x, scale, bias, eps=self.cfg.eps)
        if kind == "layer_no_bias":
            return norms.layer_norm(x, scale, eps=self.cfg.eps)
        if kind == "rms_offset":
            scale = 1.0 + scale.astype(jnp.float32)
        return norms.rms_norm(x, scale, eps=self.cfg.eps)
