"""GPT-J: parallel attention and feed-forward after one norm, rotary positions on part of each head.

Reference: Wang and Komatsuzaki, "GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model"
(2021).
"""

from functools import partial

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.common import bert_like, gpt2_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import (
    Published,
    add_prefix,
    attention_rows,
    build_heads,
    weight_rows,
)
from flaxformer_lite.nn.positions.rope import Rope

BASE = gpt2_like.BASE | dict(
    vocab_size=50400,
    max_length=2048,
    position=Rope(layout="interleaved", fraction=0.25),
    residual="parallel_shared",
    bias_at=("mlp", "logits"),
    tie_embeddings=False,
    dropout=0.0,
    init="normal",
)
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=4),
    "6b": dict(d_model=4096, num_heads=16, mlp_dim=16384, decoder_layers=28),
}
config = partial(build_config, "gptj", BASE, PRESETS, "6b")
LAYER = add_prefix(
    "attn", "attention", attention_rows("q_proj", "k_proj", "v_proj", "out_proj")
) + weight_rows(("ln_1", "attention_in_norm"), ("mlp.fc_in", "mlp/up"), ("mlp.fc_out", "mlp/down"))
BODY = gpt2_like.ENDS + add_prefix("h.{i}", "decoder/layer_{i}", LAYER)


LM_HEAD = weight_rows(("lm_head.weight", "lm_head/kernel"), ("lm_head.bias", "lm_head/bias"))


class Model(gpt2_like.Model):
    heads = ("lm", "sequence_classification", "question_answering", "none")


def read(fields: Fields) -> ModelFields:
    width = fields.get("n_embd", 4096)
    heads = fields.get("n_head", 16)
    turning = fields.nullable("rotary_dim", 64)
    head_dim = width // heads
    if turning % 2 or not 2 <= turning <= head_dim:
        raise ConfigError(
            f"config.json: rotary_dim={turning or None}: must be even and at most the head's"
            f" {head_dim}."
        )
    position = Rope(layout="interleaved", fraction=turning / head_dim)
    return {"mlp_dim": fields.get("n_inner", 4 * width), "position": position}


PUBLISHED = Published(
    model_type="gptj",
    prefix="transformer.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "GPTJ",
        lm=LM_HEAD,
        sequence_classification=gpt2_like.SCORE,
        question_answering=bert_like.SPANS,
        none=(),
    ),
    fields=gpt2_like.FIELDS,
    harmless=("scale_attn_weights", "rotary", *gpt2_like.HARMLESS),
    read=read,
    write=lambda cfg: {"n_inner": cfg.mlp_dim, "rotary_dim": cfg.position.rotated(cfg.head_width)},
    ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
)
