"""The trained model, and the companion of its objective, as functions of one tree of parameters."""

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
from flaxformer_lite.objectives.companion import Companion
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.types import Params

AUXILIARY = "losses"  # the collection into which layers sow what the objective's loss gets besides
EXAMPLE_IDS = ("input_ids", "decoder_input_ids")  # the inputs that are counted as tokens


@dataclasses.dataclass(frozen=True)
class Models:
    """The models of a step, called as `outputs(bound model, inputs)`, or `outputs(bound model,
    inputs, bound companion)`."""

    outputs: Callable[..., Any]  # the objective's
    model: nn.Module  # the one that is trained
    second: tuple[Companion, nn.Module] | None = None

    def init(self, key: jax.Array, inputs: dict[str, jax.Array]) -> Params:
        """Initializes the parameters; those that are read from a directory are zeros."""
        if self.second is None:
            return self.model.init(key, inputs, method=self.outputs)["params"]
        companion, module = self.second
        ids: dict[str, Any] = {name: inputs[name] for name in EXAMPLE_IDS if name in inputs}
        made = module.init(jax.random.fold_in(key, 1), **ids)["params"]
        params = self.model.init(key, inputs, module.bind({"params": made}), method=self.outputs)[
            "params"
        ]
        own = companion.own(made)
        return params | {
            companion.name: jax.tree.map(jnp.zeros_like, own) if companion.source else own
        }

    def apply(
        self, params: Params, inputs: dict[str, jax.Array], key: jax.Array | None
    ) -> tuple[Any, Any]:
        """Returns the objective's outputs, and what layers of the trained model have sown for its
        loss.

        Args:
          params: as `init` returns them.
          inputs: those of a batch.
          key: for dropout; None turns it off.
        """
        rngs = {} if key is None else {"dropout": key}
        bound = []
        if self.second is not None:
            companion, module = self.second
            others = (
                {} if key is None or companion.source else {"dropout": jax.random.fold_in(key, 1)}
            )
            bound = [module.bind({"params": companion.of(params)}, rngs=others)]
            params = companion.without(params)
        return self.model.apply(
            {"params": params}, inputs, *bound, rngs=rngs, method=self.outputs, mutable=[AUXILIARY]
        )

    def rules(self, params: Params) -> PartitionRules:
        """Returns the partition rules of all parameters."""
        own = parameter_rules.rules(self.model.cfg)
        if self.second is None:
            return own
        companion, module = self.second
        paths = flatten_dict(params[companion.name], sep="/")
        return (
            *parameter_rules.below(companion.name, parameter_rules.rules(module.cfg), paths),
            *own,
        )


def build(cfg: ExperimentConfig, companion: Companion | None = None, **execution: Any) -> Models:
    """Builds what a step of the experiment runs, without making or reading weights.

    Args:
      cfg: the experiment, with the vocabulary size filled in.
      companion: that of the objective, where its config lies in a directory (`fitted`).
      **execution: fields of Execution to set in all models, such as `attention` or `sharding`.

    Raises:
      ConfigError: the config of the objective's companion is missing.
    """

    def module(model: ModelConfig) -> nn.Module:
        return build_model(dataclasses.replace(model, **execution))

    second = cfg.objective.companion(cfg.model)
    if second is None:
        return Models(cfg.objective.outputs, module(cfg.model))
    if second.source:  # the others follow the model, and how it is run
        second = companion or second
    if second.cfg is None:
        raise ConfigError(
            f"objective.{second.name}={second.source}: its config is not known; read it, and pass"
            " the companion that `fitted` returns."
        )
    model = second.cfg
    if second.source:
        names = ("dtype", "param_dtype", "scan", "attention")
        as_ours = {name: getattr(cfg.model, name) for name in names}
        model = dataclasses.replace(model, dropout=0.0, **as_ours)
    return Models(cfg.objective.outputs, module(cfg.model), (second, module(model)))


def optimizer_config(cfg: ExperimentConfig) -> OptimizerConfig:
    """Returns the optimizer's settings, with a companion frozen whose weights are read from a
    directory."""
    companion = cfg.objective.companion(cfg.model)
    frozen = (f"^{companion.name}/",) if companion and companion.source else ()
    return dataclasses.replace(cfg.optimizer, freeze=(*cfg.optimizer.freeze, *frozen))


def fitted(companion: Companion, found: ModelConfig, cfg: ExperimentConfig) -> Companion:
    """Returns a companion with the config of its directory.

    Args:
      companion: that of the objective.
      found: the config of the directory.
      cfg: the experiment, with the vocabulary size filled in.

    Raises:
      ConfigError: the two models do not fit each other.
    """
    ours = cfg.model
    where = f"objective.{companion.name}={companion.source}"
    if found.skeleton != ours.skeleton:
        raise ConfigError(
            f"{where}: it holds a {found.family}, with the skeleton"
            f" {found.skeleton.replace('_', '-')}, and model.family={ours.family} is a"
            f" {ours.skeleton.replace('_', '-')}; change either."
        )
    if found.vocab_size != ours.vocab_size:
        raise ConfigError(
            f"{where}: its vocabulary has {found.vocab_size} entries, the model's"
            f" {ours.vocab_size}; set model.vocab_size={found.vocab_size}, and the tokenizer to its"
            " own."
        )
    if cfg.data.length > found.max_length and found.has_position_table:
        raise ConfigError(
            f"data.length={cfg.data.length}: {where} has positions for {found.max_length} tokens"
            f" only; set data.length={found.max_length}."
        )
    return dataclasses.replace(companion, cfg=found)
