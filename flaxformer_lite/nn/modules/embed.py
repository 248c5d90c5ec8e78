"""Embeddings: the step from token ids to the residual stream."""

from collections.abc import Callable
from dataclasses import dataclass, field

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Execution, InitConfig, NormConfig
from flaxformer_lite.nn.functions.embedding import take_rows
from flaxformer_lite.nn.functions.sharding import sharding_of
from flaxformer_lite.nn.modules.context import PositionTables
from flaxformer_lite.nn.modules.dropout import Dropout
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.norms import Norm
from flaxformer_lite.nn.positions.encoding import Encoding, list_hooks


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """The record of TokenEmbed and EmbedInputs.

    Attributes:
      vocab_size: V.
      width: E, the width of the tables; a smaller E than d_model factorizes the embedding (ALBERT,
        ELECTRA).
      d_model: D, the width of the result.
      type_vocab_size: number of token types (BERT's segments A and B); 0 for none.
      task_vocab_size: number of tasks (ERNIE; all tokens have the first); 0 for none.
      position: the encoding; its `embed` hook adds positions.
      max_length: rows of a learned position table.
      scale: factor on token vectors.
      norm: the norm after positions and types are added; None for none.
      norm_first: whether it comes before they are added instead (Blenderbot-small's decoder).
      always_projects: whether there is a layer from E to D where they are equal, as in ALBERT.
      project_bias: whether the layer from E to D has a bias.
      stddev: standard deviation of the tables' normal distribution; None takes it from `initial`.
      initial: initialization of the layer from E to D.
      frozen_token: an id whose row gets no gradient from its lookup, as torch's padding_idx; None
        for none.
      frozen_position: likewise of the positions, as in RoBERTa.
    """

    vocab_size: int
    width: int
    d_model: int
    type_vocab_size: int = 0
    task_vocab_size: int = 0
    position: Encoding = field(default_factory=Encoding)
    max_length: int = 512
    scale: float = 1.0
    norm: NormConfig | None = None
    norm_first: bool = False
    always_projects: bool = False
    project_bias: bool = False
    stddev: float | None = None
    initial: InitConfig = field(default_factory=InitConfig)
    frozen_token: int | None = None
    frozen_position: int | None = None

    def table_initializer(self) -> Callable[..., jax.Array]:
        stddev = self.initial.stddev if self.stddev is None else self.stddev
        return nn.initializers.normal(stddev)


class TokenEmbed(nn.Module):
    """The table of token vectors, which the output logits may share (Press and Wolf 2017)."""

    cfg: EmbedConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        shape = (self.cfg.vocab_size, self.cfg.width)
        dtype = jnp.dtype(self.execution.param_dtype)
        embedding = self.param("embedding", self.cfg.table_initializer(), shape, dtype)
        path = "/".join((*self.path, "embedding"))
        self.embedding = sharding_of(self.execution).gather_weight(embedding, path)

    def __call__(self, input_ids_BT: jax.Array, *, scaled: bool = True) -> jax.Array:
        # A gather, never a one-hot matmul: its gradient is 27 times cheaper on CPU, and as cheap
        # elsewhere.
        x_BTE = take_rows(self.embedding, input_ids_BT)
        if self.cfg.frozen_token is not None:
            frozen_BT1 = (input_ids_BT == self.cfg.frozen_token)[..., None]
            x_BTE = jnp.where(frozen_BT1, jax.lax.stop_gradient(x_BTE), x_BTE)
        return self.place_vectors(x_BTE, scaled=scaled)

    def place_vectors(self, x_BTE: jax.Array, *, scaled: bool = True) -> jax.Array:
        """Returns vectors that stand where rows of the table would, in the dtype of the model."""
        x_BTE = x_BTE.astype(self.execution.dtype)
        if not scaled:
            return x_BTE
        return x_BTE * jnp.asarray(self.cfg.scale, x_BTE.dtype)


class EmbedInputs(nn.Module):
    """Adds positions and token types to token vectors.

    Then applies the record's norm, dropout and projection.
    """

    cfg: EmbedConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self, x_BTE: jax.Array, position_ids_BT: jax.Array, token_type_ids_BT: jax.Array | None
    ) -> jax.Array:
        cfg = self.cfg
        run = self.execution
        if cfg.norm is not None and cfg.norm_first:
            x_BTE = Norm(cfg.norm, run, name="norm")(x_BTE)
        if cfg.type_vocab_size:
            shape = (cfg.type_vocab_size, cfg.width)
            types_UE = self.param(
                "token_types", cfg.table_initializer(), shape, jnp.dtype(run.param_dtype)
            )
            if token_type_ids_BT is None:
                token_type_ids_BT = jnp.zeros(x_BTE.shape[:2], jnp.int32)
            x_BTE = x_BTE + take_rows(types_UE, token_type_ids_BT).astype(x_BTE.dtype)
        if cfg.task_vocab_size:
            shape = (cfg.task_vocab_size, cfg.width)
            tasks_UE = self.param(
                "task_types", cfg.table_initializer(), shape, jnp.dtype(run.param_dtype)
            )
            x_BTE = x_BTE + tasks_UE[0].astype(x_BTE.dtype)[None, None]
        if "embed" in list_hooks(cfg.position):
            table_sizes = (cfg.width, 1, 1, cfg.max_length)
            tables = PositionTables(
                cfg.position, "embed", *table_sizes, cfg.initial, run, name="position"
            )
            known = tables()
            placed_BTE = cfg.position.embed(known, x_BTE, position_ids_BT)
            if cfg.frozen_position is not None:
                frozen_BT1 = (position_ids_BT == cfg.frozen_position)[..., None]
                # Looked up twice, as only the table must miss the gradient, and not x, to which it
                # is added.
                still_BTE = cfg.position.embed(jax.lax.stop_gradient(known), x_BTE, position_ids_BT)
                placed_BTE = jnp.where(frozen_BT1, still_BTE, placed_BTE)
            x_BTE = placed_BTE
        if cfg.norm is not None and not cfg.norm_first:
            x_BTE = Norm(cfg.norm, run, name="norm")(x_BTE)
        x_BTE = Dropout("embed", run)(x_BTE)
        if cfg.width != cfg.d_model or cfg.always_projects:
            sizes = {"E": cfg.width, "D": cfg.d_model}
            x_BTE = Einsum(
                "BTE,ED->BTD",
                sizes,
                bias=cfg.project_bias,
                initial=cfg.initial,
                execution=run,
                name="project",
            )(x_BTE)
        return sharding_of(run).constrain(x_BTE, "BTD")
