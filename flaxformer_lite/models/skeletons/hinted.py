"""Models that answer the calls of other libraries with what to write here."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.errors import (
    ApplyScopeInvalidVariablesStructureError,
    ApplyScopeInvalidVariablesTypeError,
    ScopeParamNotFoundError,
    ScopeParamShapeError,
)
from jax.typing import ArrayLike

from flaxformer_lite import hints
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.parts import PartitionRules
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.nn.functions.sharding import (
    UNSHARDED,
    ActivationSharding,
    PlacedExecution,
    place_execution,
)
from flaxformer_lite.nn.modules.embed import TokenEmbed
from flaxformer_lite.registry import did_you_mean


class Hinted(nn.Module):
    """A model of a family, whose errors name what to write.

    Attributes:
      cfg: its config.
      source: the directory that its published weights were loaded from.
      sharding: where activations live.
      skeleton: `encoder`, `decoder`, `encoder_decoder` or `embedding`.
      heads: the values of `cfg.head` that the family has.
      vocab_heads: those over the vocabulary.
      pooled: those that read one vector per sequence.
      head_modules: names of a family's own modules for heads, whole on every device.
      frozen_padding: `tokens` or `positions`, the tables with padding_idx in torch.
      scaled_vectors: the stacks, `encoder` or `decoder`, that scale inputs_embeds too; elsewhere
        the scale is part of the token table, as in transformers.
      heads_of_ids: those that look for a token by its id, so that vectors cannot replace it.
    """

    cfg: ModelConfig
    source: str = ""
    sharding: ActivationSharding = UNSHARDED

    skeleton: ClassVar[str]
    heads: ClassVar[tuple[str, ...]]
    vocab_heads: ClassVar[tuple[str, ...]] = ("lm",)
    pooled: ClassVar[tuple[str, ...]] = ()
    head_modules: ClassVar[tuple[str, ...]] = ()
    frozen_padding: ClassVar[tuple[str, ...]] = ()
    scaled_vectors: ClassVar[tuple[str, ...]] = ()
    heads_of_ids: ClassVar[tuple[str, ...]] = ()

    @property
    def execution(self) -> PlacedExecution:
        """How its modules run."""
        return place_execution(self.cfg.execution, self.sharding, self.cfg.adapter)

    def tuned(self) -> Self:
        """Returns the model as trainers and `generate` run it.

        Its programs are traced and compiled sooner, and their numbers differ by rounding.
        """
        return self.clone(sharding=self.sharding.with_tuning())

    @classmethod
    def layer_rules(cls, cfg: ModelConfig) -> PartitionRules:
        """Returns the partition rules of the layers of its stacks."""
        rules: PartitionRules = ()
        for side in ("encoder", "decoder"):
            if getattr(cfg, f"{side}_layers"):
                rules += build_layers.stack(cfg, side).partition_rules()
        return tuple(dict.fromkeys(rules))

    def place_vectors(self, vectors: ArrayLike, stack: str, table: TokenEmbed) -> jax.Array:
        """Returns vectors of the caller in place of those that a token table would give a stack.

        Raises:
          ConfigError: the head needs ids.
        """
        if self.cfg.head in self.heads_of_ids:
            raise ConfigError(
                f"inputs_embeds: {self.cfg.family} with head={self.cfg.head!r} looks for a token by"
                " its id; pass input_ids."
            )
        return table.place_vectors(jnp.asarray(vectors), scaled=stack in self.scaled_vectors)

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__
        try:
            return super().__getattr__(name)
        except AttributeError:
            sentence = hints.instead(kind, hints.MODEL, name)
            if sentence:
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
        sentence = hints.refused(f"apply of {kind}", hints.ARGUMENTS, list(options))
        if sentence:
            raise ConfigError(sentence)
        if options.get("method") in (None, "__call__"):
            parameters = list(inspect.signature(type(self).__call__).parameters.values())[1:]
            named = [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
            if len(args) > len(named):
                raise ConfigError(
                    f"apply of {kind}: takes {' and '.join(named)} by position; name all others, as"
                    " in attention_mask=mask."
                )
        try:
            return super().apply(variables, *args, **options)
        except (ScopeParamNotFoundError, ScopeParamShapeError) as error:
            what = str(error).partition(" (https://")[0].rstrip(".")
            raise ConfigError(
                f"apply of {kind}: params are not those of this model ({what}); pass the ones that"
                " init or load_pretrained made for it."
            ) from None
        except ApplyScopeInvalidVariablesStructureError:
            raise ConfigError(
                f"apply of {kind}: {{'params': {{'params': ...}}}} is one level too deep; pass the"
                " parameters themselves, variables['params']."
            ) from None
        except ApplyScopeInvalidVariablesTypeError:
            raise ConfigError(
                f"apply of {kind}: params is a {type(variables['params']).__name__}: must be a dict"
                " of arrays, as init or load_pretrained makes it."
            ) from None
        except TypeError as error:
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if unknown is None or unknown[1] not in options:
                raise
            method = options.get("method") or "__call__"
            close = did_you_mean(unknown[1], self._argument_names(method))
            called = kind if method == "__call__" else f"{kind}, method {method!r},"
            raise ConfigError(f"apply of {called} takes no {unknown[1]!r}{close}.") from None

    def _argument_names(self, method: str | Callable[..., Any]) -> list[str]:
        """Lists the arguments by name of a method.

        A plain call hands some on to `encode` and `decode`.
        """
        if callable(method):
            return list(inspect.signature(method).parameters)[1:]
        methods = [method]
        if method == "__call__":
            methods += ["encode", "decode"]
        names: list[str] = []
        for method in methods:
            function = getattr(type(self), method, None)
            if function is not None:
                names += list(inspect.signature(function).parameters)[1:]
        return names


class _Elsewhere:
    """A constructor that classes of other libraries have: an error that says what to write."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(hints.instead(owner.__name__, hints.MODEL, self.name))


for _name in ("from_pretrained", "from_preset"):
    setattr(Hinted, _name, _Elsewhere(_name))
