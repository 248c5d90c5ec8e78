"""Values, names of weights and fields, and heads that BERT shares with families like it."""

from flaxformer_lite.models.fields import ModelFields
from flaxformer_lite.models.weight_map import add_prefix, attention_rows, weight_rows
from flaxformer_lite.nn.positions.learned import Learned

BASE: ModelFields = dict(
    vocab_size=30522,
    max_length=512,
    type_vocab_size=2,
    position=Learned(),
    norm_eps=1e-12,
    norm_at=("embed", "out"),
    bias_at=("query", "key", "value", "out", "mlp", "logits"),
    dropout=0.1,
    head="pretraining",
)
PRESETS = {  # section 3; tiny and mini: Turc et al. (2019)
    "tiny": dict(d_model=128, num_heads=2, mlp_dim=512, encoder_layers=2),
    "mini": dict(d_model=256, num_heads=4, mlp_dim=1024, encoder_layers=4),
    "base": dict(d_model=768, num_heads=12, mlp_dim=3072, encoder_layers=12),
    "large": dict(d_model=1024, num_heads=16, mlp_dim=4096, encoder_layers=24),
}
LAYER = add_prefix(
    "attention", "attention", attention_rows("self.query", "self.key", "self.value", "output.dense")
) + weight_rows(
    ("attention.output.LayerNorm", "attention_out_norm"),
    ("intermediate.dense", "mlp/up"),
    ("output.dense", "mlp/down"),
    ("output.LayerNorm", "mlp_out_norm"),
)
BODY = (
    *weight_rows(
        ("embeddings.word_embeddings", "token_embed"),
        ("embeddings.position_embeddings.weight", "embed/position/position"),
        ("embeddings.token_type_embeddings.weight", "embed/token_types"),
        ("embeddings.LayerNorm", "embed/norm"),
        ("pooler.dense", "pooler/dense"),
    ),
    *add_prefix("encoder.layer.{i}", "encoder/layer_{i}", LAYER),
)
PREDICTIONS = weight_rows(
    ("cls.predictions.transform.dense", "masked_lm/dense"),
    ("cls.predictions.transform.LayerNorm", "masked_lm/norm"),
    ("cls.predictions.decoder.weight", "masked_lm/vocab/kernel"),
    ("cls.predictions.bias", "masked_lm/vocab/bias"),
)
PAIRS = weight_rows(("cls.seq_relationship", "next_sentence/dense"))
CLASSIFIER = weight_rows(("classifier", "classifier/dense"))
SPANS = weight_rows(("qa_outputs", "classifier/dense"))
CLASSIFIERS = dict(
    sequence_classification=CLASSIFIER,
    token_classification=CLASSIFIER,
    question_answering=SPANS,
    multiple_choice=CLASSIFIER,
)
FIELDS = dict(
    hidden_size="d_model",
    num_hidden_layers="encoder_layers",
    num_attention_heads="num_heads",
    intermediate_size="mlp_dim",
    max_position_embeddings="max_length",
    type_vocab_size="type_vocab_size",
    hidden_act="activation",
    layer_norm_eps="norm_eps",
    hidden_dropout_prob="dropout",
)
FIXED = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
BUFFERS = (r"embeddings\.(position_ids|token_type_ids)",)
