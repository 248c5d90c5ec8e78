"""Parameters of published weights whose matrices are held in few bits."""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.nn.functions import quantized
from flaxformer_lite.pretrained.layouts import Slices, input_axes
from flaxformer_lite.pretrained.lazy_params import Stored
from flaxformer_lite.pretrained.tensor_names import STACKED
from flaxformer_lite.types import Array

PARTS = ("codes", "scale")
EXPERTS = re.compile(r"/experts/(up|gate|down)/kernel$")  # nn/feed_forwards/moe.py


def with_scheme(model: nn.Module, stored: dict, form: str) -> tuple[nn.Module, dict]:
    """Returns a model that holds its layers' matrices in a form, and its parameters.

    Each matrix is read and rounded when its codes or its scales are read.

    Args:
      model: a model whose matrices are floats, or in this form already.
      stored: its parameters; a new head's may be missing.
      form: a value of `model.quantize`.

    Raises:
      ConfigError: they are in another form.
    """
    before = model.cfg.quantize
    if before == form:
        return model, stored
    if before != "none":
        raise ConfigError(
            f"quantize={form!r}: this model holds its matrices in {before}; open it so, or convert"
            " it first (flaxformer_lite convert), which restores them."
        )
    model = model.clone(cfg=dataclasses.replace(model.cfg, quantize=form))
    flat = flatten_dict(stored, sep="/")
    for path, leaf in parameter_shapes(model).items():
        kernel, _, part = path.rpartition("/")
        if kernel in flat and part in PARTS:
            flat[path] = _part(kernel, flat[kernel], leaf, form)
    held = {path.rpartition("/")[0] for path in flat if path.endswith(PARTS)}
    return model, unflatten_dict({p: x for p, x in flat.items() if p not in held}, sep="/")


def _part(path: str, kernel: Array, leaf: jax.ShapeDtypeStruct, form: str) -> Stored:
    """Returns the codes or the scales, by dtype, of the kernel at a path."""
    stacks = sum(pattern.search(path) is not None for pattern in (STACKED, EXPERTS))
    which = int(leaf.dtype == jnp.float32)

    def read(index: Slices) -> np.ndarray:
        matrix = np.asarray(kernel, np.float32)
        return np.asarray(_hold(matrix, input_axes(path), form, stacks)[which])[index]

    return Stored(leaf.shape, np.dtype(leaf.dtype), read)


_hold = jax.jit(quantized.quantize_stack, static_argnums=(1, 2, 3))
