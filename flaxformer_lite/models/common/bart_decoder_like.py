"""What BART's decoder shares with families like it: values, names of weights and fields, heads."""

import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models.common import bart_like
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import (
    Fields,
    ModelFields,
    omit,
    weight_rows,
)

BASE = omit(bart_like.BASE, "decoder_start_token_id") | dict(
    bias_at=("query", "key", "value", "out", "mlp")
)
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=2),
    "base": dict(d_model=768, num_heads=12, mlp_dim=3072, decoder_layers=6),
    "large": dict(d_model=1024, num_heads=16, mlp_dim=4096, decoder_layers=12),
}


class Model(DecoderModel):
    """BART's decoder; positions count the tokens that the attention mask keeps.

    transformers counts the padding before a prompt too, so that its text depends on the length of
    the other prompts in a batch.
    """

    heads = ("lm",)


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


def cross_attention_and_positions(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Returns also the table of sinusoidal positions, which files of Pegasus and Marian hold."""
    positions = "decoder.embed_positions.weight"
    return cross_attention(cfg) | {positions: bart_like.sinusoids(cfg)[positions]}


def read(fields: Fields, *, scaled: bool = False) -> ModelFields:
    return {"embed_power": 0.5 if fields.get("scale_embedding", scaled) else 0.0}


LM_HEAD = weight_rows(("lm_head.weight", "lm_head/kernel"))
