"""Models that answer the calls of other libraries with what to write here."""

import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from flaxformer_lite import hints
from flaxformer_lite.config import ConfigError


class Hinted(nn.Module):
    """A linen module whose errors name what to write."""

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__
        try:
            return super().__getattr__(name)
        except AttributeError:
            if sentence := hints.instead(kind, hints.MODEL, name):
                raise AttributeError(sentence) from None
            if name.startswith("_") or self.__dict__.get("scope") is not None:
                raise
            raise AttributeError(
                f"{kind} has no {name!r} outside of apply, as it holds no parameters; call"
                " model.apply({'params': params}, input_ids)."
            ) from None

    def apply(self, variables: object, *args: Any, **options: Any) -> Any:
        """Applies the model as linen does, and refuses arguments that it does not have."""
        kind = type(self).__name__
        if not isinstance(variables, Mapping) or "params" not in variables:
            raise ConfigError(
                f"apply of {kind}: the first argument must be {{'params': params}}, then the"
                " inputs."
            )
        if sentence := hints.refused(f"apply of {kind}", hints.ARGUMENTS, list(options)):
            raise ConfigError(sentence)
        if options.get("method") in (None, "__call__"):
            parameters = list(inspect.signature(type(self).__call__).parameters.values())[1:]
            named = [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
            if len(args) > len(named):
                raise ConfigError(
                    f"apply of {kind}: takes {' and '.join(named)} by position; name all others, as"
                    " in attention_mask=mask."
                )
        return super().apply(variables, *args, **options)
