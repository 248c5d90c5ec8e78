"""What sits on top of a stack. Heads over the vocabulary return a DeferredLogits: everything but the matmul with V columns."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.functions.activations import ACTIVATIONS
from flaxformer_lite.functions.losses import DeferredLogits
from flaxformer_lite.modules.dropout import Dropout
from flaxformer_lite.modules.einsum import Einsum, initializer
from flaxformer_lite.modules.norms import Norm
from flaxformer_lite.modules.sharding import sharding_of


class VocabHead(nn.Module):
    """Logits over the vocabulary, x W^T * logit_scale + b, with the token table as W where `cfg.tie_embeddings`."""

    cfg: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, embedding_VE: jax.Array) -> DeferredLogits:
        cfg, dtype, bias_V = self.cfg, jnp.dtype(self.cfg.param_dtype), None
        kernel_VE = embedding_VE
        if not cfg.tie_embeddings:
            init = initializer(cfg, x.shape[-1], cfg.vocab_size)
            kernel_VE = self.param("kernel", init, (cfg.vocab_size, x.shape[-1]), dtype)
        if "logits" in cfg.bias_at:
            bias_V = self.param("bias", nn.initializers.zeros, (cfg.vocab_size,), dtype)
        return DeferredLogits(
            x, kernel_VE, bias_V, scale=cfg.logit_scale, softcap=cfg.logit_softcap, sharding=sharding_of(cfg)
        )


class MaskedLmHead(nn.Module):
    """BERT's: a dense layer, the activation, a norm, then the vocabulary.

    Reference: Devlin et al., "BERT" (2019), appendix A.2, and the published code's `get_masked_lm_output`.
    """

    cfg: ModelConfig
    activation: str = ""  # empty: cfg.activation

    @nn.compact
    def __call__(self, x_BTD: jax.Array, embedding_VE: jax.Array) -> DeferredLogits:
        cfg = self.cfg
        sizes = {"D": cfg.d_model, "E": cfg.embed_width}
        x_BTE = Einsum(cfg, "BTD,DE->BTE", sizes, True, name="dense")(x_BTD)
        x_BTE = Norm(cfg, name="norm")(ACTIVATIONS[self.activation or cfg.activation](x_BTE))
        return VocabHead(cfg, name="vocab")(x_BTE, embedding_VE)


class Pooler(nn.Module):
    """An activation of a dense layer on the first token: the sentence's vector (Devlin et al. 2019, section 3)."""

    cfg: ModelConfig
    activation: str = "tanh"  # empty: cfg.activation

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        sizes = {"A": self.cfg.d_model, "D": self.cfg.d_model}
        activation = ACTIVATIONS[self.activation or self.cfg.activation]
        return activation(Einsum(self.cfg, "BD,DA->BA", sizes, True, name="dense")(x_BTD[:, 0]))


class Classifier(nn.Module):
    """Dropout and a dense layer to `num_labels` classes, over the last axis of [B, D] or [B, T, D]."""

    cfg: ModelConfig
    num_labels: int = 0  # 0: cfg.num_labels
    bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        labels = self.num_labels or self.cfg.num_labels
        x = Dropout(self.cfg, "branch")(x)
        equation = "BTD,DC->BTC" if x.ndim == 3 else "BD,DC->BC"
        return Einsum(self.cfg, equation, {"D": x.shape[-1], "C": labels}, self.bias, name="dense")(x)
