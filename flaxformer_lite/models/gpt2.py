"""GPT-2: a pre-norm decoder with learned positions and tied logits.

Reference: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section
2.3.
"""

from functools import partial

from flaxformer_lite.models.common import gpt2_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Head, Published, add_prefix, build_heads, weight_rows

BASE = gpt2_like.BASE
PRESETS = gpt2_like.PRESETS
Model = gpt2_like.Model

config = partial(build_config, "gpt2", gpt2_like.BASE, gpt2_like.PRESETS, "small")


LAYER = weight_rows(
    ("ln_1", "attention_in_norm"),
    ("attn.c_attn", ("attention/query", "attention/key", "attention/value"), "I3O"),
    ("attn.c_proj", "attention/out", "IO"),
    ("ln_2", "mlp_in_norm"),
    ("mlp.c_fc", "mlp/up", "IO"),
    ("mlp.c_proj", "mlp/down", "IO"),
)
BODY = gpt2_like.ENDS + add_prefix("h.{i}", "decoder/layer_{i}", LAYER)
PUBLISHED = Published(
    model_type="gpt2",
    prefix="transformer.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "GPT2", **gpt2_like.HEADS | {"lm": Head("GPT2LMHeadModel", gpt2_like.LM_HEAD)}
    ),
    fields=gpt2_like.FIELDS,
    harmless=gpt2_like.HARMLESS,
    fixed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    read=lambda fields: {"mlp_dim": fields.get("n_inner", 4 * fields.get("n_embd", 768))},
    write=lambda cfg: {"n_inner": cfg.mlp_dim, "n_ctx": cfg.max_length},
    ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
)
