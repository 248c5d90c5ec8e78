"""The text model of CLIP: a pre-norm decoder whose end token stands for the text.

`pooler_output` is the vector of the first end token; the head `projection` takes it to the space
that texts share with images, `text_embeds`.

Reference: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision"
(2021), section 2.4.
"""

from functools import partial

import jax
import jax.numpy as jnp

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import bart_like, bert_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import Head, Published, add_prefix, weight_rows
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.positions.learned import Learned

BASE = dict(
    vocab_size=49408,
    max_length=77,
    position=Learned(),
    norm_eps=1e-5,
    norm_at=("in", "final"),
    bias_at=("query", "key", "value", "out", "mlp"),
    activation="quick_gelu",
    pad_token_id=1,
    eos_token_id=49407,
    head="none",
)
PRESETS = {  # table 19 and 20, by the image model
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=2, projection_size=64),
    "b32": dict(d_model=512, num_heads=8, mlp_dim=2048, decoder_layers=12, projection_size=512),
    "l14": dict(d_model=768, num_heads=12, mlp_dim=3072, decoder_layers=12, projection_size=768),
}
config = partial(build_config, "clip_text_model", BASE, PRESETS, "b32")
# the end token of configs from before transformers corrected it; the largest id is taken then
OLD_END = 2


class Model(DecoderModel):
    heads = ("none", "projection")
    heads_of_ids = heads
    head_modules = ("text_projection",)

    def setup(self) -> None:
        super().setup()
        cfg = self.cfg
        if cfg.head == "projection":
            sizes = {"D": cfg.d_model, "P": cfg.projection_size or cfg.d_model}
            self.text_projection = Einsum(
                "BD,DP->BP",
                sizes,
                initial=cfg.initial,
                execution=self.execution,
                name="text_projection",
            )

    def on_top(self, x_BTD: jax.Array, input_ids) -> dict[str, jax.Array]:
        input_ids = jnp.asarray(input_ids)
        end = self.cfg.eos_token_id
        is_end = input_ids if end in (None, OLD_END) else input_ids == end
        end_B = jnp.argmax(is_end, axis=1)
        pooled_BD = jnp.take_along_axis(x_BTD, end_B[:, None, None], axis=1)[:, 0]
        if self.cfg.head == "none":
            return {"pooler_output": pooled_BD}
        return {"text_embeds": self.text_projection(pooled_BD)}


LAYER = add_prefix("self_attn", "attention", bart_like.ATTENTION) + weight_rows(
    ("layer_norm1", "attention_in_norm"),
    ("mlp.fc1", "mlp/up"),
    ("mlp.fc2", "mlp/down"),
    ("layer_norm2", "mlp_in_norm"),
)
BODY = (
    *weight_rows(
        ("embeddings.token_embedding", "token_embed"),
        ("embeddings.position_embedding.weight", "embed/position/position"),
        ("final_layer_norm", "decoder/final_norm"),
    ),
    *add_prefix("encoder.layers.{i}", "decoder/layer_{i}", LAYER),
)


def read(fields: Fields) -> ModelFields:
    return {
        "eos_token_id": fields.get("eos_token_id", 49407),
        "projection_size": fields.get("projection_dim", 512),
    }


def write(cfg: ModelConfig) -> Json:
    end = OLD_END if cfg.eos_token_id is None else cfg.eos_token_id
    return {"eos_token_id": end, "projection_dim": cfg.projection_size or cfg.d_model}


PROJECTION = weight_rows(("text_projection", "text_projection"))
PUBLISHED = Published(
    model_type="clip_text_model",
    prefix="text_model.",
    names=lambda cfg: BODY,
    heads={
        "none": Head("CLIPTextModel"),
        "projection": Head("CLIPTextModelWithProjection", PROJECTION),
    },
    fields=dict(
        hidden_size="d_model",
        num_hidden_layers="decoder_layers",
        num_attention_heads="num_heads",
        intermediate_size="mlp_dim",
        max_position_embeddings="max_length",
        hidden_act="activation",
        layer_norm_eps="norm_eps",
    ),
    read=read,
    write=write,
    ignored=bert_like.BUFFERS,
)
