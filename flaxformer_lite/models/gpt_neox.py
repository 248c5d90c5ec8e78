"""GPT-NeoX and Pythia: parallel attention and feed-forward, each with its own norm.

A quarter of each head is rotary.

Reference: Black et al., "GPT-NeoX-20B: An Open-Source Autoregressive Language Model" (2022),
section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import gpt2_like, llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import Published, add_prefix, build_heads, weight_rows
from flaxformer_lite.nn.positions.rope import Rope

BASE = dict(
    vocab_size=50432,
    max_length=2048,
    position=Rope(fraction=0.25),
    norm_eps=1e-5,
    residual="parallel",
    bias_at=("query", "key", "value", "out", "mlp"),
    tie_embeddings=False,
)
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=4),
    "pythia_160m": dict(
        d_model=768, num_heads=12, mlp_dim=3072, decoder_layers=12, vocab_size=50304
    ),
    "20b": dict(d_model=6144, num_heads=64, mlp_dim=24576, decoder_layers=44),
}
config = partial(build_config, "gpt_neox", BASE, PRESETS, "20b")
Model = DecoderModel
LAYER = weight_rows(
    ("input_layernorm", "attention_in_norm"),
    ("attention.query_key_value", ("attention/query", "attention/key", "attention/value"), "N3HI"),
    ("attention.dense", "attention/out"),
    ("post_attention_layernorm", "mlp_in_norm"),
    ("mlp.dense_h_to_4h", "mlp/up"),
    ("mlp.dense_4h_to_h", "mlp/down"),
)
BODY = (
    *weight_rows(("embed_in", "token_embed"), ("final_layer_norm", "decoder/final_norm")),
    *add_prefix("layers.{i}", "decoder/layer_{i}", LAYER),
)


def read(fields: Fields) -> ModelFields:
    rope = read_rope(fields, base="rotary_emb_base", fraction="rotary_pct", default_fraction=0.25)
    biased: tuple[str, ...] = ("mlp",)
    if fields.get("attention_bias", True):
        biased = ("query", "key", "value", "out", "mlp")
    return {
        "position": rope,
        "residual": "parallel" if fields.get("use_parallel_residual", True) else "sequential",
        "bias_at": biased,
    }


def write(cfg: ModelConfig) -> Json:
    rope = write_rope(cfg.position)
    return rope | {
        "rotary_emb_base": rope.pop("rope_theta"),
        "rotary_pct": cfg.position.fraction,
        "use_parallel_residual": cfg.residual == "parallel",
        "attention_bias": "query" in cfg.bias_at,
    }


PUBLISHED = Published(
    model_type="gpt_neox",
    prefix="gpt_neox.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "GPTNeoX", **gpt2_like.HEADS | {"lm": weight_rows(("embed_out.weight", "lm_head/kernel"))}
    ),
    fields=omit_fields(llama_like.FIELDS, "rms_norm_eps") | {"layer_norm_eps": "norm_eps"},
    fixed={"is_decoder": False},
    read=read,
    write=write,
    ignored=(r"layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",),
)
