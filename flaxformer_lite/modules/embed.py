"""From token ids to the residual stream."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.modules.dropout import Dropout
from flaxformer_lite.modules.einsum import Einsum
from flaxformer_lite.modules.norms import Norm
from flaxformer_lite.modules.position_tables import PositionTables, hook
from flaxformer_lite.modules.sharding import sharding_of


def table_initializer(cfg: ModelConfig):
    """Embeddings have no fans: unit variance for T5, 1 / sqrt(D) for the original Transformer, init_stddev otherwise."""
    return nn.initializers.normal({"fan_in": 1.0, "xavier": cfg.d_model**-0.5}.get(cfg.init, cfg.init_stddev))


class TokenEmbed(nn.Module):
    """The table of token vectors, which the logits may share (Press and Wolf 2017)."""

    cfg: ModelConfig

    def setup(self):
        shape = (self.cfg.vocab_size, self.cfg.embed_width)
        self.embedding = self.param("embedding", table_initializer(self.cfg), shape, jnp.dtype(self.cfg.param_dtype))

    def __call__(self, input_ids_BT: jax.Array) -> jax.Array:
        # A gather, never a one-hot matmul: its gradient is 27 times cheaper on CPU and no dearer elsewhere.
        x_BTE = jnp.take(self.embedding, input_ids_BT, axis=0).astype(self.cfg.dtype)
        return x_BTE * jnp.asarray(self.cfg.embed_scale, x_BTE.dtype)


class EmbedInputs(nn.Module):
    """Adds positions and token types to token vectors, then the norm, dropout and width that the config asks for."""

    cfg: ModelConfig

    @nn.compact
    def __call__(self, x_BTE: jax.Array, position_ids_BT: jax.Array, token_type_ids_BT: jax.Array | None) -> jax.Array:
        cfg, encoding = self.cfg, self.cfg.position
        if cfg.type_vocab_size:
            shape = (cfg.type_vocab_size, cfg.embed_width)
            types_UE = self.param("token_types", table_initializer(cfg), shape, jnp.dtype(cfg.param_dtype))
            if token_type_ids_BT is None:
                token_type_ids_BT = jnp.zeros(x_BTE.shape[:2], jnp.int32)
            x_BTE = x_BTE + jnp.take(types_UE, token_type_ids_BT, axis=0).astype(x_BTE.dtype)
        if hook(encoding) == "embed":
            tables = PositionTables(cfg, cfg.embed_width, name="position")()
            x_BTE = encoding.embed(tables, x_BTE, position_ids_BT)
        if "embed" in cfg.norm_at:
            x_BTE = Norm(cfg, name="norm")(x_BTE)
        x_BTE = Dropout(cfg, "embed")(x_BTE)
        if cfg.embed_width != cfg.d_model:
            sizes = {"E": cfg.embed_width, "D": cfg.d_model}
            x_BTE = Einsum(cfg, "BTE,ED->BTD", sizes, "embed" in cfg.bias_at, name="project")(x_BTE)
        return sharding_of(cfg).constrain(x_BTE, "BTD")
