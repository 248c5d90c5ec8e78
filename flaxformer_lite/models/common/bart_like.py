"""Values, names of weights and fields, and heads that BART shares with families like it."""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import weight_map
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.skeletons.encoder_decoder import EncoderDecoderModel
from flaxformer_lite.models.weight_map import (
    Head,
    WeightRow,
    add_prefix,
    attention_rows,
    weight_rows,
)
from flaxformer_lite.nn.positions.learned import Learned

BASE = dict(
    vocab_size=50265,
    max_length=1024,
    position=Learned(offset=2),
    norm_eps=1e-5,
    norm_at=("embed", "out"),
    bias_at=("query", "key", "value", "out", "mlp", "logits"),
    dropout=0.1,
    pad_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=2,
)
PRESETS = {  # section 3
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, encoder_layers=2, decoder_layers=2),
    "base": dict(d_model=768, num_heads=12, mlp_dim=3072, encoder_layers=6, decoder_layers=6),
    "large": dict(d_model=1024, num_heads=16, mlp_dim=4096, encoder_layers=12, decoder_layers=12),
}


class Model(EncoderDecoderModel):
    """BART.

    Without decoder_input_ids the decoder reads the input shifted right, as classification requires.
    """

    heads = ("lm", "none", "encoder", "sequence_classification", "question_answering")
    trained_bias = False
    frozen_padding = ("tokens",)

    def shift_right(self, input_ids) -> jax.Array:
        if self.cfg.decoder_start_token_id is None:
            raise ConfigError(
                "decoder_start_token_id=None: the decoder needs a first token; set it, or pass"
                " decoder_input_ids."
            )
        start_B1 = jnp.full_like(input_ids[:, :1], self.cfg.decoder_start_token_id)
        return jnp.concatenate([start_B1, input_ids[:, :-1]], axis=1)


ATTENTION = attention_rows("q_proj", "k_proj", "v_proj", "out_proj")


def layer(cfg: ModelConfig) -> tuple[WeightRow, ...]:
    """Returns the rows of a layer without cross-attention.

    Norms have the same names before a layer and after it.
    """
    slot = "out" if "out" in cfg.norm_at else "in"
    return add_prefix("self_attn", "attention", ATTENTION) + weight_rows(
        ("self_attn_layer_norm", f"attention_{slot}_norm"),
        ("fc1", "mlp/up"),
        ("fc2", "mlp/down"),
        ("final_layer_norm", f"mlp_{slot}_norm"),
    )


LM_HEAD = weight_rows(
    ("lm_head.weight", "lm_head/kernel"), ("final_logits_bias", "lm_head/bias", "1O")
)
CLASSIFIER = weight_rows(
    ("classification_head.dense", "pooler/dense"),
    ("classification_head.out_proj", "classifier/dense"),
)
FIELDS = dict(
    d_model="d_model",
    encoder_layers="encoder_layers",
    decoder_layers="decoder_layers",
    encoder_attention_heads="num_heads",
    encoder_ffn_dim="mlp_dim",
    max_position_embeddings="max_length",
    activation_function="activation",
    dropout="dropout",
)
ENDS = {"eos_token_id": "eos_token_id", "decoder_start_token_id": "decoder_start_token_id"}
DUPLICATES = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
}
# Leftovers of the first releases, which no current version of transformers reads.
HARMLESS = (
    "add_bias_logits",
    "add_final_layer_norm",
    "do_blenderbot_90_layernorm",
    "extra_pos_embeddings",
    "force_bos_token_to_be_generated",
    "normalize_before",
    "normalize_embedding",
    "num_hidden_layers",
)


def heads(name: str, **classifiers: tuple[WeightRow, ...]) -> dict[str, Head]:
    return weight_map.build_heads(
        name, lm=Head(f"{name}ForConditionalGeneration", LM_HEAD), none=(), **classifiers
    )


def read(
    fields: Fields, *, heads: int = 16, mlp_dim: int = 4096, scaled: bool = False
) -> ModelFields:
    """Reads the sizes of the decoder that differ from the encoder's.

    Args:
      fields: the fields of config.json.
      heads: number of heads, for a side whose number config.json does not give.
      mlp_dim: width of the feed-forward layers, likewise.
      scaled: whether token vectors are scaled, likewise.
    """
    encoder_heads = fields.get("encoder_attention_heads", heads)
    encoder_mlp_dim = fields.get("encoder_ffn_dim", mlp_dim)
    decoder_heads = fields.get("decoder_attention_heads", heads)
    decoder_mlp_dim = fields.get("decoder_ffn_dim", mlp_dim)
    return {
        "decoder_num_heads": decoder_heads if decoder_heads != encoder_heads else 0,
        "decoder_mlp_dim": decoder_mlp_dim if decoder_mlp_dim != encoder_mlp_dim else 0,
        "embed_power": 0.5 if fields.get("scale_embedding", scaled) else 0.0,
        "num_labels": 3,  # if the config names none
    }


def write(cfg: ModelConfig) -> Json:
    return {
        "decoder_attention_heads": cfg.of_decoder.num_heads,
        "decoder_ffn_dim": cfg.of_decoder.mlp_dim,
        "scale_embedding": cfg.embed_power == 0.5,
        "is_encoder_decoder": True,
        # of the first releases, for CTranslate2's converter
        "normalize_before": "in" in cfg.norm_at,
        "normalize_embedding": "embed" in cfg.norm_at,
        "add_final_layer_norm": "final" in cfg.norm_at,
    }


def sinusoids(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Computes the fixed position tables of both stacks, which published files hold.

    WeightRow t of a table is [sin(t w_0), sin(t w_1), ..., cos(t w_0), ...], w_p = 10000^(-2p / D).

    Returns:
      Arrays [max_length, D] by their published names.
    """
    angles_TP = (
        np.arange(cfg.max_length)[:, None]
        * 10000.0 ** (-np.arange(0, cfg.d_model, 2) / cfg.d_model)[None]
    )
    table = np.concatenate([np.sin(angles_TP), np.cos(angles_TP)], axis=1)
    return {f"{side}.embed_positions.weight": table for side in ("encoder", "decoder")}
