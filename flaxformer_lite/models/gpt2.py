"""GPT-2: a pre-norm decoder with learned positions and tied logits.

Reference: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section
2.3.
"""

from functools import partial

from flaxformer_lite.models import bert
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import Head, Published, heads, rows, within
from flaxformer_lite.nn.positions.learned import Learned

BASE = dict(
    vocab_size=50257,
    max_length=1024,
    position=Learned(),
    norm_eps=1e-5,
    norm_at=("in", "final"),
    activation="gelu_tanh",
    bias_at=("query", "key", "value", "out", "mlp"),
    dropout=0.1,
    init="normal_residual",
)
PRESETS = {  # table 2
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=512, decoder_layers=4),
    "small": dict(d_model=768, num_heads=12, mlp_dim=3072, decoder_layers=12),
    "medium": dict(d_model=1024, num_heads=16, mlp_dim=4096, decoder_layers=24),
    "large": dict(d_model=1280, num_heads=20, mlp_dim=5120, decoder_layers=36),
    "xl": dict(d_model=1600, num_heads=25, mlp_dim=6400, decoder_layers=48),
}
config = partial(build, "gpt2", BASE, PRESETS, "small")


class Model(DecoderModel):
    """GPT-2, which looks token types up in its token table."""

    types_are_tokens = True


LAYER = rows(
    ("ln_1", "attention_in_norm"),
    ("attn.c_attn", ("attention/query", "attention/key", "attention/value"), "I3O"),
    ("attn.c_proj", "attention/out", "IO"),
    ("ln_2", "mlp_in_norm"),
    ("mlp.c_fc", "mlp/up", "IO"),
    ("mlp.c_proj", "mlp/down", "IO"),
)
SCORE = rows(("score", "classifier/dense"))
ENDS = rows(
    ("wte", "token_embed"),
    ("wpe.weight", "embed/position/position"),
    ("ln_f", "decoder/final_norm"),
)
BODY = ENDS + within("h.{i}", "decoder/layer_{i}", LAYER)
LM_HEAD = rows(("lm_head.weight", "lm_head/kernel"))
HEADS = dict(
    lm=LM_HEAD,
    sequence_classification=SCORE,
    token_classification=bert.CLASSIFIER,
    question_answering=bert.SPANS,
    none=(),
)
FIELDS = dict(
    n_positions="max_length",
    n_embd="d_model",
    n_layer="decoder_layers",
    n_head="num_heads",
    activation_function="activation",
    layer_norm_epsilon="norm_eps",
    resid_pdrop="dropout",
)
HARMLESS = (
    "n_ctx",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
)
PUBLISHED = Published(
    model_type="gpt2",
    prefix="transformer.",
    names=lambda cfg: BODY,
    heads=heads("GPT2", **HEADS | {"lm": Head("GPT2LMHeadModel", LM_HEAD)}),
    fields=FIELDS,
    harmless=HARMLESS,
    fixed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    read=lambda fields: {"mlp_dim": fields.get("n_inner", 4 * fields.get("n_embd", 768))},
    write=lambda cfg: {"n_inner": cfg.mlp_dim},
    ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
)
