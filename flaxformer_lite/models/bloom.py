"""BLOOM: a decoder with ALiBi and a norm right after the embeddings.

Reference: BigScience Workshop, "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model"
(2022), section 3.2.
"""

from functools import partial

from flaxformer_lite.models.common import gpt2_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import Published, add_prefix, build_heads, weight_rows
from flaxformer_lite.nn.positions.alibi import Alibi

BASE = dict(
    vocab_size=250880,
    max_length=2048,
    position=Alibi(),
    norm_eps=1e-5,
    norm_at=("embed", "in", "final"),
    activation="gelu_tanh",
    bias_at=("query", "key", "value", "out", "mlp"),
    pad_token_id=3,
)
PRESETS = {  # table 3
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=4),
    "560m": dict(d_model=1024, num_heads=16, mlp_dim=4096, decoder_layers=24),
    "7b1": dict(d_model=4096, num_heads=32, mlp_dim=16384, decoder_layers=30),
    "176b": dict(d_model=14336, num_heads=112, mlp_dim=57344, decoder_layers=70),
}
config = partial(build_config, "bloom", BASE, PRESETS, "560m")
Model = DecoderModel
LAYER = weight_rows(
    ("input_layernorm", "attention_in_norm"),
    (
        "self_attention.query_key_value",
        ("attention/query", "attention/key", "attention/value"),
        "N3HI",
    ),
    ("self_attention.dense", "attention/out"),
    ("post_attention_layernorm", "mlp_in_norm"),
    ("mlp.dense_h_to_4h", "mlp/up"),
    ("mlp.dense_4h_to_h", "mlp/down"),
)
BODY = (
    *weight_rows(
        ("word_embeddings", "token_embed"),
        ("word_embeddings_layernorm", "embed/norm"),
        ("ln_f", "decoder/final_norm"),
    ),
    *add_prefix("h.{i}", "decoder/layer_{i}", LAYER),
)


def read(fields: Fields) -> ModelFields:
    """Reads the sizes, which have two names each; published configs use one or the other."""
    width = fields.get("n_embed", fields.get("hidden_size", 64))
    return {
        "d_model": width,
        "mlp_dim": 4 * width,
        "decoder_layers": fields.get("n_layer", fields.get("num_hidden_layers", 2)),
        "num_heads": fields.get("n_head", fields.get("num_attention_heads", 8)),
    }


# Fields about parallel training.
HARMLESS = (
    "attention_softmax_in_fp32",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "offset_alibi",
    "seq_length",
    "skip_bias_add",
    "skip_bias_add_qkv",
    "unk_token_id",
)
PUBLISHED = Published(
    model_type="bloom",
    prefix="transformer.",
    names=lambda cfg: BODY,
    heads=build_heads("Bloom", **gpt2_like.HEADS),
    fields={"layer_norm_epsilon": "norm_eps"},
    fixed={"apply_residual_connection_post_layernorm": False, "n_inner": None},
    harmless=HARMLESS,
    read=read,
    write=lambda cfg: {
        "hidden_size": cfg.d_model,
        "n_layer": cfg.decoder_layers,
        "n_head": cfg.num_heads,
    },
)
