"""Generation with a language model from outside the package, without a config or a cache."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.first_model import refuse_fork
from flaxformer_lite.inference.prompts import refuse_traced
from flaxformer_lite.models.skeletons.family_model import FamilyModel
from flaxformer_lite.types import Array, Params

NEEDED = (
    "generate and score take a model of this package, or a causal linen module that maps ids"
    " [B, T] to logits [B, T, V], returned as an array or as the field `logits`"
)
PROBE_TOKENS = 8  # tokens


@dataclasses.dataclass(frozen=True)
class OwnConfig:
    """The fields of a ModelConfig that generation reads."""

    family: str
    vocab_size: int
    max_length: int  # 0: no limit
    head: str = "lm"
    encoder_layers: int = 0
    decoder_layers: int = 1
    decoder_start_token_id: int | None = None
    scan: bool = False
    share_layers: bool = False
    feed_forwards: tuple[()] = ()  # none that is known here
    mixer_names: tuple[()] = ()

    @property
    def of_decoder(self) -> "OwnConfig":
        return self

    @property
    def has_position_table(self) -> bool:
        return self.max_length > 0


@dataclasses.dataclass(frozen=True)
class OwnModel:
    """A causal linen module that maps ids [B, T] to logits [B, T, V].

    It has no cache: each new token costs a pass over the whole row. Rows begin in the first column,
    and what follows a token is filled with zeros, which a causal module does not see.
    """

    module: nn.Module
    cfg: OwnConfig
    starts_with_language = False

    def logits(self, params: Params, ids_BT: Array) -> jax.Array:
        output: Any = self.module.apply({"params": params}, ids_BT)
        return getattr(output, "logits", output).astype(jnp.float32)

    def next_logits(
        self, params: Params, tokens_BS: jax.Array, start_B: jax.Array, column: jax.Array | int
    ) -> jax.Array:
        """Returns the logits [B, V] of the token after `column` of rows that begin at `start_B`."""
        columns_1S = jnp.arange(tokens_BS.shape[1], dtype=jnp.int32)[None]
        last_B1 = (column - start_B)[:, None]
        from_B_S = (columns_1S + start_B[:, None]) % tokens_BS.shape[1]
        ids_BS = jnp.take_along_axis(tokens_BS, from_B_S, axis=1)
        ids_BS = jnp.where(columns_1S <= last_B1, ids_BS, 0)
        if self.cfg.has_position_table:
            ids_BS = ids_BS[:, : self.cfg.max_length]
        logits_BSV = self.logits(params, ids_BS)
        return jnp.take_along_axis(logits_BSV, last_B1[:, :, None], axis=1)[:, 0]


def wrap_module(model: object, params: Params) -> Any:
    """Returns a model of this package tuned, and any other module as an `OwnModel`.

    Raises:
      ConfigError: the module does not map ids to logits, or a token's logits depend on later ones.
    """
    refuse_fork()
    refuse_traced(params)
    if isinstance(model, FamilyModel):
        return model.tuned()
    wrapped = wrap_own_module(model, params)
    length = min(PROBE_TOKENS, wrapped.cfg.max_length or PROBE_TOKENS)
    if length > 1 and wrapped.cfg.vocab_size > 1:
        _check_causal(wrapped, params, length)
    return wrapped


def wrap_own_module(model: object, params: Params) -> OwnModel:
    """Returns a linen module, causal or not, as an `OwnModel`.

    A module may say by an attribute `max_length` how many tokens it reads at most.

    Raises:
      ConfigError: the module does not map ids to logits.
    """
    name = type(model).__name__
    if not isinstance(model, nn.Module):
        way = ""
        if hasattr(model, "to_nnx__module"):
            way = "; of an NNX module pass *from_nnx(module)"
        raise ConfigError(f"model is of type {name}: {NEEDED}{way}.")
    most = getattr(model, "max_length", None) or 0
    length = min(PROBE_TOKENS, most or PROBE_TOKENS)
    try:
        output = jax.eval_shape(
            lambda params, ids: model.apply({"params": params}, ids),
            params,
            jax.ShapeDtypeStruct((1, length), jnp.int32),
        )
    except Exception as error:  # whatever the module raises
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"{name}: cannot be applied to ids [1, {length}] ({type(error).__name__}: {first});"
            f" {NEEDED}."
        ) from error
    logits = getattr(output, "logits", output)
    shape = getattr(logits, "shape", None)
    floats = shape is not None and jnp.issubdtype(logits.dtype, jnp.floating)
    if shape is None or not floats or len(shape) != 3 or shape[:2] != (1, length):
        given = f"shape {shape}" if shape is not None else f"a {type(logits).__name__}"
        raise ConfigError(f"{name}: returns {given} for ids [1, {length}]; {NEEDED}.")
    return OwnModel(model, OwnConfig(name, shape[2], most))


def _check_causal(model: OwnModel, params: Params, length: int) -> None:
    """Refuses a module where the last tokens change the logits of the first."""
    vocab = model.cfg.vocab_size
    seen = length // 2
    ids = np.arange(length, dtype=np.int32) % vocab
    other = np.where(np.arange(length) < seen, ids, (ids + 1) % vocab).astype(np.int32)
    first, second = np.asarray(_logits(model, params, np.stack([ids, other])))[:, :seen]
    if np.isnan(first).any():
        raise ConfigError(
            f"{model.cfg.family}: its logits for the ids {ids.tolist()} are NaN; check the"
            " parameters."
        )
    largest = float(np.abs(first).max(initial=0.0, where=np.isfinite(first)))
    if not np.allclose(first, second, rtol=1e-3, atol=1e-3 * largest):
        raise ConfigError(
            f"{model.cfg.family}: the logits of a token change with the tokens after it, so that it"
            " cannot write from left to right; make it causal, as by Stack(..., causal=True)."
        )


@functools.partial(jax.jit, static_argnames=("model",))
def _logits(model: OwnModel, params: Params, ids_BT: Array) -> jax.Array:
    return model.logits(params, ids_BT)
