"""The models of a train step, as functions of one tree of parameters.

The tree holds the parameters of the trained model, and under the name of the auxiliary model, if
the objective has one, those of the second model.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict

from flaxformer_lite.config import ConfigError, ExperimentConfig, ModelConfig, OptimizerConfig
from flaxformer_lite.config.parts import PartitionRules
from flaxformer_lite.models import build_model
from flaxformer_lite.nn.functions.sharding import UNSHARDED, ActivationSharding
from flaxformer_lite.objectives.auxiliary_model import AuxiliaryModel
from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.objectives.rows import TOKEN_IDS
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.types import Params, Tree

LOSSES = "losses"  # the collection into which layers sow auxiliary losses
ROUTED = "routed"  # and that of the sums of which losses of whole stacks are made
LOADS = "loads"  # and that of how many choices of tokens fell on each of their experts


@dataclasses.dataclass(frozen=True)
class Models:
    """The trained model, and the auxiliary model of its objective if there is one.

    Attributes:
      objective: its `outputs` are called with the bound model, the inputs, and the bound second
        model if there is one.
      model: the linen module that is trained.
      auxiliary: the second model, with the config that it runs with, or None.
    """

    objective: Objective
    model: nn.Module
    auxiliary: AuxiliaryModel | None = None

    @property
    def second(self) -> nn.Module:
        """The linen module of the auxiliary model."""
        assert self.auxiliary is not None and self.auxiliary.cfg is not None
        return build_model(self.auxiliary.cfg).clone(sharding=self.model.sharding)

    def rebuild(self, *, sharding: ActivationSharding = UNSHARDED, **execution: Any) -> "Models":
        """Returns the models with other places of activations.

        Args:
          sharding: where activations live.
          **execution: fields of Execution to set in both models, such as `attention`.
        """
        model = build_model(self.model.cfg, **execution).clone(sharding=sharding)
        auxiliary = self.auxiliary
        if auxiliary is not None:
            cfg = dataclasses.replace(self.second.cfg, **execution)
            auxiliary = dataclasses.replace(auxiliary, cfg=cfg)
        return Models(self.objective, model, auxiliary)

    def init(self, key: jax.Array, inputs: dict[str, jax.Array]) -> Params:
        """Initializes the parameters of both models.

        Args:
          key: a random key.
          inputs: the inputs of a batch of one example.

        Returns:
          The tree of parameters; those that are read from a directory later are zeros.
        """
        if self.auxiliary is None:
            return self.model.init(key, inputs, method=self.objective.outputs)["params"]
        ids: dict[str, Any] = {}
        for name in TOKEN_IDS:
            if name in inputs:  # an example may hold several rows
                ids[name] = inputs[name].reshape(-1, inputs[name].shape[-1])
        second = self.second
        # Another key, or two models of one shape would begin with equal weights.
        second_params = second.init(jax.random.fold_in(key, 1), **ids)["params"]
        bound = second.bind({"params": second_params})
        params = self.model.init(key, inputs, bound, method=self.objective.outputs)["params"]
        return self.auxiliary.join(params, second_params)

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
          sown, such as LOSSES.
        """
        rngs = {} if key is None else {"dropout": key}
        bound = []
        if self.auxiliary is not None:
            second_rngs = {}
            # A model from a directory is not trained, and drops nothing.
            if key is not None and not self.auxiliary.source:
                second_rngs = {"dropout": jax.random.fold_in(key, 1)}
            bound = [self.second.bind({"params": self.auxiliary.of(params)}, rngs=second_rngs)]
            params = self.auxiliary.trained(params)
        # Linen's own apply: the model's adds hints for people, which no step needs.
        return nn.Module.apply(
            self.model,
            {"params": params},
            inputs,
            *bound,
            rngs=rngs,
            method=self.objective.outputs,
            mutable=[LOSSES, ROUTED, LOADS],
        )

    def rules(self, params: Params) -> PartitionRules:
        """Returns the partition rules of both models, for parameters as `init` returns them."""
        trained = parameter_rules.rules(self.model.cfg)
        if self.auxiliary is None:
            return trained
        name = self.auxiliary.name
        paths = flatten_dict(params[name], sep="/")
        own = parameter_rules.rules(self.second.cfg)
        return (*parameter_rules.below(name, own, paths), *trained)

    def trained_params(self, params: Params) -> Params:
        """Returns the parameters of the trained model."""
        if self.auxiliary is None:
            return params
        return self.auxiliary.without(params)

    def split_offsets(self, params: Params, shardings: Tree) -> Params:
        """Splits published parameters, which are sums, where the trained model learns an offset.

        Args:
          params: those of the run, in which the trained model's hold the sums.
          shardings: of what is returned.
        """
        if self.auxiliary is None or not self.auxiliary.offset:
            return params
        return jax.jit(self.auxiliary.initial, out_shardings=shardings)(params)

    @property
    def from_directory(self) -> AuxiliaryModel | None:
        """The auxiliary model if its weights are read from a directory."""
        if self.auxiliary is None or not self.auxiliary.source:
            return None
        return self.auxiliary

    def own_paths(self, paths: Iterable[str]) -> frozenset[str]:
        """Returns those of the paths that an auxiliary model from a directory does not hold."""
        second = self.from_directory
        return frozenset(path for path in paths if second is None or not second.holds(path))

    def own_params(self, params: Params) -> Params:
        """Returns the parameters without an auxiliary model's that is read from a directory."""
        if self.from_directory is None:
            return params
        return self.from_directory.without(params)


def build(cfg: ExperimentConfig, auxiliary: AuxiliaryModel | None = None) -> Models:
    """Builds the models that a step of the experiment runs, without their parameters.

    Args:
      cfg: the experiment, with the vocabulary size filled in.
      auxiliary: the objective's auxiliary model with its config, as `fitted` returns it; needed if
        the config is in a directory.

    Raises:
      ConfigError: the config of the auxiliary model is missing, or it would be trained although an
        adapter freezes all that is not its own.
    """
    second = cfg.objective.auxiliary_model(cfg.model)
    if second is not None and second.source:
        second = _with_execution(auxiliary or second, cfg.model)
    elif second is not None and cfg.model.adapter is not None:
        raise ConfigError(
            f"model.adapter={type(cfg.model.adapter).__name__}: freezes the objective's"
            f" {second.name}, which has no weights to start from; train without an adapter, or"
            " set another objective.name."
        )
    return Models(cfg.objective, build_model(cfg.model), second)


def _with_execution(second: AuxiliaryModel, trained: ModelConfig) -> AuxiliaryModel:
    """Returns a model from a directory, executed as the run executes its own."""
    if second.cfg is None:
        raise ConfigError(
            f"objective.{second.name}={second.source}: its config is unknown; read it, and pass the"
            " auxiliary model that `fitted` returns."
        )
    names = ("dtype", "param_dtype", "scan", "attention")
    same = {name: getattr(trained, name) for name in names}
    return dataclasses.replace(second, cfg=dataclasses.replace(second.cfg, dropout=0.0, **same))


def optimizer_config(cfg: ExperimentConfig) -> OptimizerConfig:
    """Returns the optimizer's settings; freezes a model that is read from a directory."""
    second = cfg.objective.auxiliary_model(cfg.model)
    if second is None or not second.source:
        return cfg.optimizer
    freeze = (*cfg.optimizer.freeze, f"^{second.name}/")
    return dataclasses.replace(cfg.optimizer, freeze=freeze)


def fitted(second: AuxiliaryModel, stored: ModelConfig, cfg: ExperimentConfig) -> AuxiliaryModel:
    """Returns an auxiliary model with the config of its directory, after checking that it fits.

    Args:
      second: the auxiliary model of the objective.
      stored: the config of its directory.
      cfg: the experiment, with the vocabulary size filled in.

    Raises:
      ConfigError: the two models do not fit each other.
    """
    trained = cfg.model
    where = f"objective.{second.name}={second.source}"
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
    return dataclasses.replace(second, cfg=stored)
