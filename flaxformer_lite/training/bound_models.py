"""The models of a train step, as functions of one tree of parameters.

The tree holds the parameters of the trained model, and under the name of the companion, if the
objective has one, those of the second model.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from flaxformer_lite.config import ConfigError, ExperimentConfig, ModelConfig, OptimizerConfig
from flaxformer_lite.config.parts import PartitionRules
from flaxformer_lite.models import build_model
from flaxformer_lite.nn.functions.sharding import UNSHARDED, ActivationSharding
from flaxformer_lite.objectives.companion import Companion
from flaxformer_lite.objectives.rows import TOKEN_IDS
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.types import Params

AUXILIARY = "losses"  # the collection into which layers sow auxiliary losses
ROUTED = "routed"  # and that of the sums of which losses of whole stacks are made
LOADS = "loads"  # and that of how many choices of tokens fell on each of their experts


@dataclasses.dataclass(frozen=True)
class Models:
    """The trained model, and the companion of its objective if there is one.

    Attributes:
      outputs: `Objective.outputs`, called with the bound model, the inputs, and the bound companion
        if there is one.
      model: the linen module that is trained.
      second: the companion and its linen module, or None.
    """

    outputs: Callable[..., Any]
    model: nn.Module
    second: tuple[Companion, nn.Module] | None = None

    def init(self, key: jax.Array, inputs: dict[str, jax.Array]) -> Params:
        """Initializes the parameters of both models.

        Args:
          key: a random key.
          inputs: the inputs of a batch of one example.

        Returns:
          The tree of parameters; those that are read from a directory later are zeros.
        """
        if self.second is None:
            return self.model.init(key, inputs, method=self.outputs)["params"]
        companion, module = self.second
        ids: dict[str, Any] = {name: inputs[name] for name in TOKEN_IDS if name in inputs}
        second_params = module.init(jax.random.fold_in(key, 1), **ids)["params"]
        bound = module.bind({"params": second_params})
        params = self.model.init(key, inputs, bound, method=self.outputs)["params"]
        unshared = companion.unshared(second_params)
        if companion.source:
            unshared = jax.tree.map(jnp.zeros_like, unshared)
        made = params | {companion.name: unshared}
        if companion.offset:
            made = companion.initial(made)
        return made

    def apply(
        self, params: Params, inputs: dict[str, jax.Array], key: jax.Array | None
    ) -> tuple[Any, Params]:
        """Runs the models on a batch.

        Args:
          params: the parameters, as `init` returns them.
          inputs: the inputs of the batch, arrays [B, ...].
          key: a random key for dropout; None turns dropout off.

        Returns:
          The outputs of the objective, and the collections that layers of the trained model have
          sown, such as AUXILIARY.
        """
        rngs = {} if key is None else {"dropout": key}
        bound = []
        if self.second is not None:
            companion, module = self.second
            second_rngs = {}
            if key is not None and not companion.source:
                second_rngs = {"dropout": jax.random.fold_in(key, 1)}
            bound = [module.bind({"params": companion.of(params)}, rngs=second_rngs)]
            params = companion.trained(params)
        # Linen's own apply: the model's adds hints for people, which no step needs.
        return nn.Module.apply(
            self.model,
            {"params": params},
            inputs,
            *bound,
            rngs=rngs,
            method=self.outputs,
            mutable=[AUXILIARY, ROUTED, LOADS],
        )

    def rules(self, params: Params) -> PartitionRules:
        """Returns the partition rules of both models, for parameters as `init` returns them."""
        trained = parameter_rules.rules(self.model.cfg)
        if self.second is None:
            return trained
        companion, module = self.second
        paths = flatten_dict(params[companion.name], sep="/")
        second = parameter_rules.below(companion.name, parameter_rules.rules(module.cfg), paths)
        return (*second, *trained)


def build(
    cfg: ExperimentConfig,
    companion: Companion | None = None,
    *,
    sharding: ActivationSharding = UNSHARDED,
    **execution: Any,
) -> Models:
    """Builds the models that a step of the experiment runs, without their parameters.

    Args:
      cfg: the experiment, with the vocabulary size filled in.
      companion: the companion of the objective with its config, as `fitted` returns it; needed if
        the config is in a directory.
      sharding: where activations live.
      **execution: fields of Execution to set in both models, such as `attention`.

    Raises:
      ConfigError: the config of the objective's companion is missing.
    """

    def module(model: ModelConfig) -> nn.Module:
        return build_model(dataclasses.replace(model, **execution)).clone(sharding=sharding)

    second = cfg.objective.companion(cfg.model)
    if second is None:
        return Models(cfg.objective.outputs, module(cfg.model))
    if second.source and companion:
        second = companion
    if second.cfg is None:
        raise ConfigError(
            f"objective.{second.name}={second.source}: its config is unknown; read it, and pass the"
            " companion that `fitted` returns."
        )
    model = second.cfg
    if second.source:  # its config says nothing about how this run executes it
        names = ("dtype", "param_dtype", "scan", "attention")
        same = {name: getattr(cfg.model, name) for name in names}
        model = dataclasses.replace(model, dropout=0.0, **same)
    return Models(cfg.objective.outputs, module(cfg.model), (second, module(model)))


def optimizer_config(cfg: ExperimentConfig) -> OptimizerConfig:
    """Returns the optimizer's settings; freezes a companion that is read from a directory."""
    companion = cfg.objective.companion(cfg.model)
    if companion is None or not companion.source:
        return cfg.optimizer
    freeze = (*cfg.optimizer.freeze, f"^{companion.name}/")
    return dataclasses.replace(cfg.optimizer, freeze=freeze)


def fitted(companion: Companion, stored: ModelConfig, cfg: ExperimentConfig) -> Companion:
    """Returns the companion with the config of its directory, after checking that it fits.

    Args:
      companion: the companion of the objective.
      stored: the config of its directory.
      cfg: the experiment, with the vocabulary size filled in.

    Raises:
      ConfigError: the two models do not fit each other.
    """
    trained = cfg.model
    where = f"objective.{companion.name}={companion.source}"
    if stored.skeleton != trained.skeleton:
        raise ConfigError(
            f"{where}: is a {stored.family}, with the skeleton"
            f" {stored.skeleton.replace('_', '-')}, but model.family={trained.family} has the"
            f" skeleton {trained.skeleton.replace('_', '-')}; change one of them."
        )
    if stored.vocab_size != trained.vocab_size:
        raise ConfigError(
            f"{where}: its vocabulary has {stored.vocab_size} entries, but the model's has"
            f" {trained.vocab_size}; set model.vocab_size={stored.vocab_size}, and"
            " data.tokenizer.path to the tokenizer of that directory."
        )
    if cfg.data.length > stored.max_length and stored.has_position_table:
        raise ConfigError(
            f"data.length={cfg.data.length}: {where} has positions for {stored.max_length} tokens"
            f" only; set data.length={stored.max_length}."
        )
    return dataclasses.replace(companion, cfg=stored)
