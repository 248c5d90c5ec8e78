"""Values, names of weights and fields, and heads that GPT-2 shares with families like it."""

from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.skeletons.decoder import DecoderModel
from flaxformer_lite.models.weight_map import weight_rows
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


class Model(DecoderModel):
    """GPT-2, which looks token types up in its token table."""

    types_are_tokens = True


SCORE = weight_rows(("score", "classifier/dense"))
ENDS = weight_rows(
    ("wte", "token_embed"),
    ("wpe.weight", "embed/position/position"),
    ("ln_f", "decoder/final_norm"),
)
LM_HEAD = weight_rows(("lm_head.weight", "lm_head/kernel"))
HEADS = dict(
    lm=LM_HEAD,
    sequence_classification=SCORE,
    token_classification=bert_like.CLASSIFIER,
    question_answering=bert_like.SPANS,
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
