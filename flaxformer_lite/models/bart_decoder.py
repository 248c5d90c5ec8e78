"""BART's decoder alone, as a language model: no encoder, and no cross-attention.

transformers' BartForCausalLM keeps the cross-attention in its files, where it computes nothing;
here it is not read, and files are written with zeros in its place.
"""

import dataclasses
from functools import partial

import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import bart
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import (
    Fields,
    ModelFields,
    heads,
    rows,
    within,
    without,
)

BASE = without(bart.BASE, "decoder_start_token_id") | dict(
    bias_at=("query", "key", "value", "out", "mlp")
)
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=2),
    "base": dict(d_model=768, num_heads=12, mlp_dim=3072, decoder_layers=6),
    "large": dict(d_model=1024, num_heads=16, mlp_dim=4096, decoder_layers=12),
}
config = partial(build, "bart_decoder", BASE, PRESETS, "large")


class Model(DecoderModel):
    """BART's decoder; positions count the tokens that the attention mask keeps.

    transformers counts the padding before a prompt too, so that its text depends on the length of
    the other prompts in a batch.
    """

    heads = ("lm",)


def names(cfg: ModelConfig) -> tuple:
    """Returns the weight rows; norms have the same names before a layer and after it."""
    slot = "out" if "out" in cfg.norm_at else "in"
    layer = within("self_attn", "attention", bart.ATTENTION) + rows(
        ("self_attn_layer_norm", f"attention_{slot}_norm"),
        ("fc1", "mlp/up"),
        ("fc2", "mlp/down"),
        ("final_layer_norm", f"mlp_{slot}_norm"),
    )
    ends = rows(
        ("embed_tokens", "token_embed"),
        ("embed_positions.weight", "embed/position/position"),
        ("layernorm_embedding", "embed/norm"),
        ("layer_norm", "decoder/final_norm"),
    )
    return within("decoder", "", ends + within("layers.{i}", "decoder/layer_{i}", layer))


def cross_attention(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Returns the tensors of the cross-attention that nothing reads, for strict loaders."""
    zeros_D = np.zeros(cfg.d_model, np.float32)
    zeros_DD = np.zeros((cfg.d_model, cfg.d_model), np.float32)
    tensors: dict[str, np.ndarray] = {}
    for i in range(cfg.decoder_layers):
        layer = f"decoder.layers.{i}"
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors[f"{layer}.encoder_attn.{projection}.weight"] = zeros_DD
            tensors[f"{layer}.encoder_attn.{projection}.bias"] = zeros_D
        tensors[f"{layer}.encoder_attn_layer_norm.weight"] = zeros_D + 1
        tensors[f"{layer}.encoder_attn_layer_norm.bias"] = zeros_D
    return tensors


FIELDS = dict(
    d_model="d_model",
    decoder_layers="decoder_layers",
    decoder_attention_heads="num_heads",
    decoder_ffn_dim="mlp_dim",
    max_position_embeddings="max_length",
    activation_function="activation",
    dropout="dropout",
)
ENCODER = ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")


def read(fields: Fields, *, scaled: bool = False) -> ModelFields:
    return {"embed_power": 0.5 if fields.get("scale_embedding", scaled) else 0.0}


def write(cfg: ModelConfig) -> Json:
    """Writes sizes of an encoder too, as transformers' caches take their number of layers."""
    return {
        "encoder_layers": cfg.decoder_layers,
        "encoder_attention_heads": cfg.num_heads,
        "encoder_ffn_dim": cfg.mlp_dim,
        "scale_embedding": cfg.embed_power == 0.5,
        "is_decoder": True,
        "is_encoder_decoder": False,
    }


LM_HEAD = rows(("lm_head.weight", "lm_head/kernel"))
PUBLISHED = dataclasses.replace(
    bart.PUBLISHED,
    names=names,
    heads=heads("Bart", lm=LM_HEAD),
    fields=FIELDS,
    harmless=(*bart.HARMLESS, *ENCODER, "is_decoder"),
    fixed={},
    read=read,
    write=write,
    duplicates={},
    derived=cross_attention,
    optional=(),
    ignored=(*bart.PUBLISHED.ignored, r"decoder\.layers\.\d+\.encoder_attn(_layer_norm)?\..*"),
    relatives={},
)
