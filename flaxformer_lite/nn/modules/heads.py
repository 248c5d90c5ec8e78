"""Output heads.

Heads over the vocabulary return DeferredLogits: everything except the matmul with V columns.
"""

from dataclasses import dataclass, field

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, Execution, InitConfig, NormConfig
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.nn.functions.sharding import adapter_of, sharding_of
from flaxformer_lite.nn.modules.dropout import Dropout
from flaxformer_lite.nn.modules.einsum import Einsum, make_initializer
from flaxformer_lite.nn.modules.norms import Norm

LABELS = {"question_answering": 2, "multiple_choice": 1}  # number of labels that the task fixes


@dataclass(frozen=True, kw_only=True)
class VocabConfig:
    """The record of a VocabHead: logits cap tanh((x W^T * scale + b) / cap).

    Attributes:
      vocab_size: V.
      tied: whether W is the token table; otherwise the head has its own kernel.
      scale: factor on the dot products.
      softcap: the cap; 0 for none.
      bias: whether there is a b.
      initial: initialization of the kernel.
    """

    vocab_size: int
    tied: bool = True
    scale: float = 1.0
    softcap: float = 0.0
    bias: bool = False
    initial: InitConfig = field(default_factory=InitConfig)


class VocabHead(nn.Module):
    """Logits over the vocabulary, not yet multiplied out."""

    cfg: VocabConfig
    execution: Execution = Execution()
    # False if b is a constant of the published weights, which gets no gradient
    trained_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, embedding_VE: jax.Array) -> DeferredLogits:
        cfg = self.cfg
        dtype = jnp.dtype(self.execution.param_dtype)
        bias_V = None
        kernel_VE = embedding_VE
        sharding = sharding_of(self.execution)
        if not cfg.tied:
            init = make_initializer(cfg.initial, x.shape[-1], cfg.vocab_size)
            kernel_VE = self.param("kernel", init, (cfg.vocab_size, x.shape[-1]), dtype)
            kernel_VE = sharding.gather_weight(kernel_VE, "/".join((*self.path, "kernel")))
        if cfg.bias:
            bias_V = self.param("bias", nn.initializers.zeros, (cfg.vocab_size,), dtype)
            if not self.trained_bias:
                bias_V = jax.lax.stop_gradient(bias_V)
        adapter = adapter_of(self.execution)
        if adapter is not None and adapter.adapts_table("/".join((*self.path, "kernel"))):
            if cfg.tied:
                raise ConfigError(
                    f"adapter.targets={adapter.targets}: the table of the logits is the token"
                    " table; set model.tie_embeddings=False to adapt it, or leave it out."
                )
            x, kernel_VE = adapter.beside_table(self, x, kernel_VE)
        return DeferredLogits(
            x,
            kernel_VE,
            bias_V,
            self.get_variable("params", "rows"),
            scale=cfg.scale,
            softcap=cfg.softcap,
            sharding=sharding,
        )


class MaskedLmHead(nn.Module):
    """BERT's head: dense layer to the width of the tables, activation, norm, vocabulary.

    Reference: Devlin et al., "BERT" (2019), appendix A.2, and the published code's
    `get_masked_lm_output`.
    """

    cfg: VocabConfig
    activation: str
    norm: NormConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, x_BTD: jax.Array, embedding_VE: jax.Array) -> DeferredLogits:
        sizes = {"D": x_BTD.shape[-1], "E": embedding_VE.shape[-1]}
        x_BTE = Einsum(
            "BTD,DE->BTE",
            sizes,
            bias=True,
            initial=self.cfg.initial,
            execution=self.execution,
            name="dense",
        )(x_BTD)
        x_BTE = Norm(self.norm, self.execution, name="norm")(ACTIVATIONS[self.activation](x_BTE))
        return VocabHead(self.cfg, self.execution, name="vocab")(x_BTE, embedding_VE)


class Transform(nn.Module):
    """A dense layer of the same width, an activation and a norm, before the last layer of a head.

    Takes and returns vectors of sequences [B, D] or of tokens [B, T, D]; `norm` None leaves the
    norm out.
    """

    activation: str
    norm: NormConfig | None = None
    bias: bool = True
    initial: InitConfig = InitConfig()
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        sizes = {"D": x.shape[-1], "A": x.shape[-1]}
        equation = "BTD,DA->BTA" if x.ndim == 3 else "BD,DA->BA"
        dense = Einsum(
            equation,
            sizes,
            bias=self.bias,
            initial=self.initial,
            execution=self.execution,
            name="dense",
        )
        x = ACTIVATIONS[self.activation](dense(x))
        if self.norm is None:
            return x
        return Norm(self.norm, self.execution, name="norm")(x)


class Pooler(nn.Module):
    """The sentence vector: a dense layer and an activation on the first token.

    Reference: Devlin et al. 2019, section 3.
    """

    activation: str = "tanh"
    initial: InitConfig = InitConfig()
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        sizes = {"A": x_BTD.shape[-1], "D": x_BTD.shape[-1]}
        dense = Einsum(
            "BD,DA->BA",
            sizes,
            bias=True,
            initial=self.initial,
            execution=self.execution,
            name="dense",
        )
        return ACTIVATIONS[self.activation](dense(x_BTD[:, 0]))


class Classifier(nn.Module):
    """Dropout and a dense layer to `num_labels` classes, over the last axis of [B, (T,) D]."""

    num_labels: int
    bias: bool = True
    initial: InitConfig = InitConfig()
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = Dropout("branch", self.execution)(x)
        equation = "BTD,DC->BTC" if x.ndim == 3 else "BD,DC->BC"
        sizes = {"D": x.shape[-1], "C": self.num_labels}
        return Einsum(
            equation,
            sizes,
            bias=self.bias,
            initial=self.initial,
            execution=self.execution,
            name="dense",
        )(x)
