"""OPT: a decoder with ReLU and learned positions.

Its 350M size is post-norm, with embeddings narrower than the model.

Reference: Zhang et al., "OPT: Open Pre-trained Transformer Language Models" (2022), section 2.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import bert_like, gpt2_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import (
    Published,
    add_prefix,
    attention_rows,
    build_heads,
    weight_rows,
)
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.positions.learned import Learned

BASE = dict(
    vocab_size=50272,
    max_length=2048,
    position=Learned(offset=2),
    norm_eps=1e-5,
    activation="relu",
    bias_at=("query", "key", "value", "out", "mlp"),
    dropout=0.1,
    pad_token_id=1,
)
PRESETS = {  # table 1
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=4),
    "125m": dict(d_model=768, num_heads=12, mlp_dim=3072, decoder_layers=12),
    "350m": dict(
        d_model=1024,
        num_heads=16,
        mlp_dim=4096,
        decoder_layers=24,
        embedding_size=512,
        norm_at=("out",),
    ),
    "1.3b": dict(d_model=2048, num_heads=32, mlp_dim=8192, decoder_layers=24),
    "6.7b": dict(d_model=4096, num_heads=32, mlp_dim=16384, decoder_layers=32),
}
config = partial(build_config, "opt", BASE, PRESETS, "125m")


class Model(DecoderModel):
    """OPT.

    Narrow embeddings are widened before positions are added, and the decoder's output is narrowed
    again.
    """

    heads = ("lm", "sequence_classification", "question_answering", "none")
    frozen_padding = ("tokens",)

    def setup(self) -> None:
        super().setup()
        sizes = {"E": self.cfg.embedding_width, "D": self.cfg.d_model}
        if self.narrow:
            how: dict[str, Any] = {"initial": self.cfg.initial, "execution": self.execution}
            self.project_in = Einsum("BTE,ED->BTD", sizes, **how)
            self.project_out = Einsum("BTD,DE->BTE", sizes, **how)

    @property
    def narrow(self) -> bool:
        return self.cfg.embedding_width != self.cfg.d_model

    @property
    def inner_width(self) -> int:
        return self.cfg.d_model

    def tokens(self, input_ids, inputs_embeds=None) -> jax.Array:
        x_BTE = super().tokens(input_ids, inputs_embeds)
        if self.narrow:
            x_BTE = self.project_in(x_BTE)
        return x_BTE

    def positions_with_padding(self, attention_mask) -> jax.Array:
        """Returns positions that are -1 in padding."""
        real_BT = attention_mask.astype(bool).astype(jnp.int32)
        return jnp.cumsum(real_BT, axis=1) * real_BT - 1

    def decode(self, input_ids=None, **inputs) -> tuple[jax.Array, list | None]:
        x_BTD, cache = super().decode(input_ids, **inputs)
        if self.narrow:
            x_BTD = self.project_out(x_BTD)
        return x_BTD, cache


LAYER = add_prefix(
    "self_attn", "attention", attention_rows("q_proj", "k_proj", "v_proj", "out_proj")
)
LAYER += weight_rows(("fc1", "mlp/up"), ("fc2", "mlp/down"))


def names(cfg: ModelConfig) -> tuple:
    """Returns the weight rows; norms have the same names before a layer and after it."""
    slot = "out" if "out" in cfg.norm_at else "in"
    norms = weight_rows(
        ("self_attn_layer_norm", f"attention_{slot}_norm"), ("final_layer_norm", f"mlp_{slot}_norm")
    )
    ends = weight_rows(
        ("embed_tokens", "token_embed"),
        ("embed_positions.weight", "embed/position/position"),
        ("project_in", "project_in"),
        ("project_out", "project_out"),
        ("final_layer_norm", "decoder/final_norm"),
    )
    return add_prefix(
        "decoder", "", ends + add_prefix("layers.{i}", "decoder/layer_{i}", LAYER + norms)
    )


def read(fields: Fields) -> ModelFields:
    width = fields.get("word_embed_proj_dim", 0)
    hidden = fields.get("hidden_size", 768)
    before = fields.get("do_layer_norm_before", True)
    endless = fields.get("_remove_final_layer_norm", False)  # read even where it changes nothing
    norm_at: tuple[str, ...] = ("in", "final")
    if not before:
        norm_at = ("out",)
    elif endless:
        norm_at = ("in",)
    return {"embedding_size": width if width != hidden else 0, "norm_at": norm_at}


def write(cfg: ModelConfig) -> Json:
    return {
        "word_embed_proj_dim": cfg.embedding_width,
        "do_layer_norm_before": "in" in cfg.norm_at,
        "_remove_final_layer_norm": set(cfg.norm_at) == {"in"},
    }


FIELDS = dict(
    hidden_size="d_model",
    ffn_dim="mlp_dim",
    num_hidden_layers="decoder_layers",
    num_attention_heads="num_heads",
    max_position_embeddings="max_length",
    activation_function="activation",
    dropout="dropout",
)
PUBLISHED = Published(
    model_type="opt",
    prefix="model.",
    names=names,
    heads=build_heads(
        "OPT",
        lm=gpt2_like.LM_HEAD,
        sequence_classification=gpt2_like.SCORE,
        question_answering=bert_like.SPANS,
        none=(),
    ),
    fields=FIELDS,
    harmless=("output_projection",),
    fixed={"enable_bias": True, "layer_norm_elementwise_affine": True},
    read=read,
    write=write,
)
