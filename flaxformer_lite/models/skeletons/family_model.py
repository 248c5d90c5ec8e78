"""The base class of the models of all families."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.parts import PartitionRules
from flaxformer_lite.first_model import refuse_fork
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.explain_errors import (
    APPLY_ERRORS,
    explain_apply_error,
    explain_attribute,
    explain_variables,
)
from flaxformer_lite.nn.functions.sharding import (
    UNSHARDED,
    ActivationSharding,
    PlacedExecution,
    place_execution,
)
from flaxformer_lite.nn.modules.embed import TokenEmbed


class FamilyModel(nn.Module):
    """A model of a family: its config, and where it runs.

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
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or self.__dict__.get("scope") is not None:
                raise
            raise AttributeError(explain_attribute(type(self).__name__, name)) from None

    def apply(self, variables: Any, *args: Any, **options: Any) -> Any:
        """Applies the model as linen does, with errors that name what to write.

        Raises:
          ConfigError: an argument that it does not have, or parameters of another model.
        """
        if not isinstance(variables, Mapping):
            raise ConfigError(explain_variables(type(self).__name__))
        refuse_fork()
        try:
            return super().apply(variables, *args, **options)
        except APPLY_ERRORS as error:
            sentence = explain_apply_error(self, error, variables, options)
            if not sentence:
                raise
            raise ConfigError(sentence) from None


class _Elsewhere:
    """A constructor that classes of other libraries have: an error that says what to write."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(explain_attribute(owner.__name__, self.name))


for _name in ("from_pretrained", "from_preset"):
    setattr(FamilyModel, _name, _Elsewhere(_name))
