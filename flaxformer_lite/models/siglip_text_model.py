"""The text model of SigLIP: a pre-norm encoder whose last token stands for the text.

`pooler_output` is a linear map of the vector of the last token, be it padding: SigLIP is trained
on texts that are padded to `max_length`, and attends to padding.

Reference: Zhai et al., "Sigmoid Loss for Language Image Pre-Training" (2023), section 4.
"""

from functools import partial

import flax.linen as nn
import jax

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import clip_text_model
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import Head, Published, add_prefix, weight_rows
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.heads import Pooler
from flaxformer_lite.nn.positions.learned import Learned

BASE = dict(
    vocab_size=32000,
    max_length=64,
    position=Learned(),
    norm_eps=1e-6,
    norm_at=("in", "final"),
    bias_at=("query", "key", "value", "out", "mlp"),
    activation="gelu_tanh",
    pad_token_id=1,
    head="none",
)
PRESETS = {  # by the image model
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, encoder_layers=2),
    "base": dict(d_model=768, num_heads=12, mlp_dim=3072, encoder_layers=12),
    "large": dict(d_model=1024, num_heads=16, mlp_dim=4096, encoder_layers=24),
    "so400m": dict(d_model=1152, num_heads=16, mlp_dim=4304, encoder_layers=27),
}
config = partial(build_config, "siglip_text_model", BASE, PRESETS, "base")


class LastToken(Pooler):
    """A linear map of the last token's vector."""

    width: int = 0

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        sizes = {"D": x_BTD.shape[-1], "P": self.width}
        dense = Einsum(
            "BD,DP->BP",
            sizes,
            bias=True,
            initial=self.initial,
            execution=self.execution,
            name="dense",
        )
        return dense(x_BTD[:, -1])


class Model(EncoderModel):
    heads = ("none",)
    pooled = ("none",)
    frozen_padding = ()

    def setup_head(self) -> None:
        cfg = self.cfg
        width = cfg.projection_size or cfg.d_model
        self.pooler = LastToken("", cfg.initial, self.execution, width)


BODY = (
    *weight_rows(
        ("embeddings.token_embedding", "token_embed"),
        ("embeddings.position_embedding.weight", "embed/position/position"),
        ("final_layer_norm", "encoder/final_norm"),
        ("head", "pooler/dense"),
    ),
    *add_prefix("encoder.layers.{i}", "encoder/layer_{i}", clip_text_model.LAYER),
)


def read(fields: Fields) -> ModelFields:
    return {"projection_size": fields.get("projection_size", 0)}


def write(cfg: ModelConfig) -> Json:
    return {"projection_size": cfg.projection_size or cfg.d_model}


PUBLISHED = Published(
    model_type="siglip_text_model",
    prefix="text_model.",
    names=lambda cfg: BODY,
    heads={"none": Head("SiglipTextModel")},
    fields={**clip_text_model.PUBLISHED.fields, "num_hidden_layers": "encoder_layers"},
    read=read,
    write=write,
    ignored=bert_like.BUFFERS,
)
