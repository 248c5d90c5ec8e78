"""Mixtures of experts in a form that one file computes for any number of tokens."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, ModelConfig, plugin_name
from flaxformer_lite.nn.feed_forwards.capacity_moe import CapacityMoeConfig
from flaxformer_lite.nn.feed_forwards.moe import Matrices, MoeConfig, hidden_of_experts
from flaxformer_lite.nn.functions.sharding import ActivationSharding
from flaxformer_lite.nn.mixers.block_sparse import BlockSparseConfig
from flaxformer_lite.nn.mixers.gated_delta import GatedDeltaConfig
from flaxformer_lite.nn.mixers.local_global import LocalGlobalConfig

# They cut a length into blocks, or round its multiples, which a file of any length cannot.
BY_LENGTH = (BlockSparseConfig, CapacityMoeConfig, GatedDeltaConfig, LocalGlobalConfig)
PARTS_OF_LAYERS = ("mixer", "feed_forward", "extra_branch")


def with_all_experts(cfg: ModelConfig) -> ModelConfig:
    """Returns the config with mixtures that compute all experts for each token.

    Raises:
      ConfigError: a part of the model must know the length of a text.
    """
    pattern = []
    for kind in cfg.pattern:
        changed = {name: _converted(cfg, getattr(kind, name)) for name in PARTS_OF_LAYERS}
        pattern.append(dataclasses.replace(kind, **changed))
    return dataclasses.replace(
        cfg,
        mixer=_converted(cfg, cfg.mixer),
        feed_forward=_converted(cfg, cfg.feed_forward),
        pattern=tuple(pattern),
    )


def _converted(cfg: ModelConfig, record: Any) -> Any:
    if isinstance(record, BY_LENGTH):
        raise ConfigError(
            f"family={cfg.family!r}: {plugin_name(record)} works by the length of a text, which a"
            " file for all lengths cannot; serve the folder that convert writes."
        )
    if type(record) is not MoeConfig:
        return record
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return AllExpertsConfig(**fields)


def mix_all_experts(
    cfg: MoeConfig,
    matrices: Matrices,
    sharding: ActivationSharding,
    x_LD: jax.Array,
    weights_LA: jax.Array,
    chosen_LA: jax.Array,
) -> jax.Array:
    """Computes `mix_sorted` by all experts for each token: ONNX sorts only axes of known length."""

    def times(x_LD: jax.Array, matrix: dict[str, jax.Array]) -> jax.Array:
        y_LXF = jnp.einsum("LD,XDF->LXF", x_LD, matrix["kernel"])
        if "bias" in matrix:
            y_LXF = y_LXF + matrix["bias"][None]
        return y_LXF

    up_LXF = times(x_LD, matrices["up"])
    gate_LXF = None
    if cfg.expert.gated:
        gate_LXF = times(x_LD, matrices["gate"])
    h_LXF = hidden_of_experts(cfg, up_LXF, gate_LXF)
    y_LXD = jnp.einsum("LXF,XFD->LXD", h_LXF, matrices["down"]["kernel"])
    experts = matrices["down"]["kernel"].shape[0]
    chosen_LAX = jax.nn.one_hot(chosen_LA, experts, dtype=y_LXD.dtype)
    weights_LX = jnp.einsum("LAX,LA->LX", chosen_LAX, weights_LA.astype(y_LXD.dtype))
    return jnp.einsum("LXD,LX->LD", y_LXD, weights_LX)


@dataclass(frozen=True, kw_only=True)
class AllExpertsConfig(MoeConfig):
    """The record of `Moe` for any number of tokens."""

    mix = mix_all_experts
