"""Converts linen models with their parameters to nnx.Modules and back, with flax.nnx.bridge."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from flax import nnx
from flax.core import unfreeze

from flaxformer_lite.config import ConfigError


class NnxModel(nnx.bridge.ToNNX):
    """A linen model with its parameters, as an nnx.Module; the result of `to_nnx`.

    It has the methods of the linen model, and is called with the same arguments, without
    `{"params": params}`. Its parameters are nnx.Param, in dicts under their names in linen:
    `module.decoder["layer_0"]["mlp"]["up"]["kernel"]`.

    Attributes:
      deterministic: whether dropout is off, which is the default. `train()` and `eval()` of this
        module, or of one that contains it, change it.
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
          *args, **kwargs: as for the linen model.
          rngs: the random numbers for dropout in this call. None: after `train()`, the
            module; otherwise there is no dropout.

        Raises:
          ConfigError: `train()` was called, and the module has no rngs.
        """
        if rngs is None and not self.deterministic:
            if self.to_nnx__rngs is None:
                raise ConfigError(
                    "train(): dropout needs rngs, as in to_nnx(model, params, rngs=nnx.Rngs(0));"
                    " pass them, or call eval()."
                )
            rngs = self.to_nnx__rngs
        if isinstance(rngs, nnx.Rngs):
            key: jax.Array | None = rngs.dropout()
        else:
            key = rngs
        if key is None:
            return super().__call__(*args, rngs=nnx.Rngs(), **kwargs)
        return super().__call__(*args, rngs=nnx.Rngs(dropout=key), **kwargs)


def to_nnx(model: nn.Module, params: dict, *, rngs: nnx.Rngs | None = None) -> NnxModel:
    """Turns a linen model and its parameters into an nnx.Module, without a copy.

        >>> module = to_nnx(*load_pretrained("path/to/gpt2"))  # doctest: +SKIP
        >>> logits = module(input_ids).logits  # doctest: +SKIP

    Args:
      model: a linen module of this package, or one of your own.
      params: its parameters, from load_pretrained or `model.init(...)["params"]`, on any mesh.
      rngs: the random numbers for dropout after `train()`, from their stream `dropout`, or the
        default one.

    Raises:
      ConfigError: params is not a dict of parameters.
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

    It is the inverse of `to_nnx`.

        >>> save_pretrained("published/mine", *from_nnx(module))  # doctest: +SKIP

    Args:
      module: the result of `to_nnx`, or an nnx.bridge.ToNNX.

    Raises:
      ConfigError: the module holds no linen model.
    """
    if not isinstance(module, nnx.bridge.ToNNX):
        raise ConfigError(
            f"from_nnx of {type(module).__name__}: holds no linen model; pass what to_nnx returned."
        )
    return module.to_nnx__module, nnx.to_pure_dict(nnx.state(module, nnx.Param))
