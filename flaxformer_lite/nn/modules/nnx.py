"""Conversion to NNX and back by flax.nnx.bridge.

A linen model becomes an nnx.Module with its parameters.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from flax import nnx
from flax.core import unfreeze

from flaxformer_lite.config import ConfigError


class NnxModel(nnx.bridge.ToNNX):
    """A linen model with its parameters, as an nnx.Module; `to_nnx` makes it.

    It is called as the linen model is, without `{"params": params}`, and has its methods. Its
    parameters are nnx.Param, in dicts under their names in linen:
    `module.decoder["layer_0"]["mlp"]["up"]["kernel"]`.

    Attributes:
      deterministic: whether dropout is off, as at first. `train()` and `eval()` of this module, or
        of one that holds it, switch it.
    """

    def __init__(self, model: nn.Module, rngs: nnx.Rngs | None = None):
        super().__init__(model, rngs)
        self.to_nnx__deterministic = True

    @property
    def deterministic(self) -> bool:
        return self.to_nnx__deterministic

    @deterministic.setter
    def deterministic(self, value: bool) -> None:
        self.to_nnx__deterministic = value

    def __call__(self, *args: Any, rngs: nnx.Rngs | jax.Array | None = None, **kwargs: Any) -> Any:
        """Applies the linen model.

        Args:
          *args, **kwargs: those of the linen model.
          rngs: draws dropout for this call; None: those of the module between `train()` and
            `eval()`, else none.

        Raises:
          ConfigError: training has begun, and there are no rngs.
        """
        if rngs is None and not self.deterministic:
            if self.to_nnx__rngs is None:
                raise ConfigError(
                    "train(): dropout needs rngs, as in to_nnx(model, params, rngs=nnx.Rngs(0));"
                    " pass them, or call eval()."
                )
            rngs = self.to_nnx__rngs
        key = rngs.dropout() if isinstance(rngs, nnx.Rngs) else rngs
        if key is None:
            return super().__call__(*args, rngs=nnx.Rngs(), **kwargs)
        return super().__call__(*args, rngs=nnx.Rngs(dropout=key), **kwargs)


def to_nnx(model: nn.Module, params: dict, *, rngs: nnx.Rngs | None = None) -> NnxModel:
    """Turns a linen model and its parameters into an nnx.Module, without a copy.

        >>> module = to_nnx(*load_pretrained("path/to/gpt2"))  # doctest: +SKIP
        >>> logits = module(input_ids).logits  # doctest: +SKIP

    Args:
      model: a linen module of this package, or one of your own.
      params: its parameters, such as load_pretrained and `model.init(...)["params"]` give them, on
        any mesh.
      rngs: draw dropout after `train()`, by their stream `dropout`, or the default one.

    Raises:
      ConfigError: params are not those of a model.
    """
    if not isinstance(params, Mapping) or set(params) <= {"params"}:
        raise ConfigError(
            'params: must be a dict of the parameters themselves; pass variables["params"].'
        )
    module = NnxModel(model, rngs)
    for name, value in unfreeze(params).items():
        setattr(module, name, nnx.data(jax.tree.map(nnx.Param, value)))
    return module


def from_nnx(module: nnx.Module) -> tuple[nn.Module, dict]:
    """Returns the linen model and the parameters of a bridged nnx.Module.

    `to_nnx` or nnx.bridge.ToNNX has made it.

        >>> save_pretrained("published/mine", *from_nnx(module))  # doctest: +SKIP

    Raises:
      ConfigError: the module was made otherwise.
    """
    if not isinstance(module, nnx.bridge.ToNNX):
        raise ConfigError(
            f"from_nnx of {type(module).__name__}: holds no linen model; pass what to_nnx returned."
        )
    return module.to_nnx__module, nnx.to_pure_dict(nnx.state(module, nnx.Param))
