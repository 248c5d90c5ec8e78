"""DistilBERT: BERT with half the layers, no token types and no pooler.

Reference: Sanh et al., "DistilBERT, a distilled version of BERT" (2019), section 3.
"""

from functools import partial

from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import (
    Published,
    add_prefix,
    attention_rows,
    build_heads,
    weight_rows,
)

BASE = bert_like.BASE | dict(type_vocab_size=0, norm_eps=1e-12, head="masked_lm")
PRESETS = {
    "tiny": bert_like.PRESETS["tiny"],
    "base": dict(bert_like.PRESETS["base"], encoder_layers=6),
}
config = partial(build_config, "distilbert", BASE, PRESETS, "base")


class Model(EncoderModel):
    heads = ("none", "masked_lm", *bert_like.CLASSIFIERS)
    pooled = ("sequence_classification", "multiple_choice")
    pooler_activation = "relu"


LAYER = add_prefix(
    "attention", "attention", attention_rows("q_lin", "k_lin", "v_lin", "out_lin")
) + weight_rows(
    ("sa_layer_norm", "attention_out_norm"),
    ("ffn.lin1", "mlp/up"),
    ("ffn.lin2", "mlp/down"),
    ("output_layer_norm", "mlp_out_norm"),
)
BODY = (
    *weight_rows(
        ("embeddings.word_embeddings", "token_embed"),
        ("embeddings.position_embeddings.weight", "embed/position/position"),
        ("embeddings.LayerNorm", "embed/norm"),
    ),
    *add_prefix("transformer.layer.{i}", "encoder/layer_{i}", LAYER),
)
PREDICTIONS = weight_rows(
    ("vocab_transform", "masked_lm/dense"),
    ("vocab_layer_norm", "masked_lm/norm"),
    ("vocab_projector", "masked_lm/vocab"),
)
FIRST_TOKEN = weight_rows(("pre_classifier", "pooler/dense"), ("classifier", "classifier/dense"))
POOLED = dict(sequence_classification=FIRST_TOKEN, multiple_choice=FIRST_TOKEN)
FIELDS = dict(
    dim="d_model",
    n_layers="encoder_layers",
    n_heads="num_heads",
    hidden_dim="mlp_dim",
    max_position_embeddings="max_length",
    activation="activation",
    dropout="dropout",
)
PUBLISHED = Published(
    model_type="distilbert",
    prefix="distilbert.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "DistilBert", none=(), masked_lm=PREDICTIONS, **bert_like.CLASSIFIERS | POOLED
    ),
    fields=FIELDS,
    harmless=(
        "sinusoidal_pos_embds",
    ),  # only says how the position table, which the file holds, was initialized
    ignored=bert_like.BUFFERS,
)
