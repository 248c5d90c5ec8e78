"""DeBERTa: an encoder whose attention compares content with relative positions.

Reference: He, Liu, Gao, Chen, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (2021),
section 3 (arXiv:2006.03654).
"""

from functools import partial

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import Published, add_prefix, build_heads, weight_rows
from flaxformer_lite.nn.mixers.disentangled import TERMS, DisentangledConfig
from flaxformer_lite.nn.positions.learned import Learned
from flaxformer_lite.nn.positions.nope import Nope

BASE: ModelFields = dict(
    vocab_size=50265,
    max_length=512,
    position=Nope(),
    mixer=DisentangledConfig(),
    norm_eps=1e-7,
    norm_at=("embed", "out"),
    bias_at=("query", "value", "out", "mlp", "logits"),
    dropout=0.1,
    pad_token_id=0,
    head="masked_lm",
)
PRESETS = {  # table 8 and the published configs
    "tiny": bert_like.PRESETS["tiny"],
    "base": bert_like.PRESETS["base"],
    "large": bert_like.PRESETS["large"],
    "xlarge": dict(d_model=1024, num_heads=16, mlp_dim=4096, encoder_layers=48),
}
config = partial(build_config, "deberta", BASE, PRESETS, "base")


class Model(EncoderModel):
    """DeBERTa; the classifier of sequences reads a dense layer of the first token.

    The masked-LM head is BERT's, as in transformers; the paper's decoder with absolute positions
    (section 3.2) is in no published class.
    """

    heads = (
        "none",
        "masked_lm",
        "sequence_classification",
        "token_classification",
        "question_answering",
    )
    vocab_heads = ("masked_lm",)
    pooled = ("sequence_classification",)
    pooler_activation = "gelu"
    zero_padding = True


LAYER = weight_rows(
    ("attention.output.dense", "attention/out"),
    ("attention.output.LayerNorm", "attention_out_norm"),
    ("intermediate.dense", "mlp/up"),
    ("output.dense", "mlp/down"),
    ("output.LayerNorm", "mlp_out_norm"),
)
JOINED = weight_rows(
    ("in_proj", ("attention/query", "attention/key", "attention/value"), "N3HI"),
    ("q_bias", "attention/query/bias"),
    ("v_bias", "attention/value/bias"),
    ("pos_proj", "attention/position_key"),
    ("pos_q_proj", "attention/position_query"),
)
EMBEDDINGS = weight_rows(
    ("embeddings.word_embeddings", "token_embed"),
    ("embeddings.position_embeddings.weight", "embed/position/position"),
    ("embeddings.token_type_embeddings.weight", "embed/token_types"),
    ("embeddings.LayerNorm", "embed/norm"),
    ("encoder.rel_embeddings.weight", "encoder/position/relative"),
)
BODY = (
    *EMBEDDINGS,
    *add_prefix("encoder.layer.{i}", "encoder/layer_{i}", LAYER),
    *add_prefix("encoder.layer.{i}.attention.self", "encoder/layer_{i}", JOINED),
)
POOLER = weight_rows(("pooler.dense", "pooler/dense"))
HEADS = dict(
    none=(),
    masked_lm=bert_like.PREDICTIONS,
    sequence_classification=POOLER + bert_like.CLASSIFIER,
    token_classification=bert_like.CLASSIFIER,
    question_answering=bert_like.SPANS,
)
# names in the files that Microsoft published, as with `legacy: false`
SPELLINGS = {
    r"^lm_predictions\.lm_head\.(dense|LayerNorm)\b": r"cls.predictions.transform.\1",
    r"^lm_predictions\.lm_head\.bias$": "cls.predictions.bias",
}
FIXED = {"pooler_hidden_act": "gelu"}
HARMLESS = ("cls_dropout", "padding_idx", "pooler_dropout", "z_steps")


def read_terms(fields: Fields) -> tuple[str, ...]:
    """Reads the terms besides the content's; none without relative attention."""
    named = fields.get("pos_att_type") or []
    if isinstance(named, str):
        named = [term.strip() for term in named.lower().split("|")]
    if any(term not in TERMS for term in named):
        raise ConfigError(
            f"config.json: pos_att_type={quote_value(named)}: only c2p and p2c are supported here."
        )
    relative = fields.get("relative_attention", False)
    if relative != bool(named):
        raise ConfigError(
            f"config.json: relative_attention={relative}, pos_att_type={quote_value(named)}: one"
            " without the other is not supported; name the terms of relative attention, or"
            " neither."
        )
    return tuple(term for term in TERMS if term in named)


def read_sizes(fields: Fields) -> None:
    """Refuses widths that differ from the model's."""
    width = fields.get("hidden_size", 0)
    for name in ("embedding_size", "pooler_hidden_size"):
        if width:
            fields.require(name, width)


def read_input(fields: Fields) -> ModelFields:
    """Reads what v1 and v2 share besides the mixer."""
    read_sizes(fields)
    learned = fields.get("position_biased_input", True)
    values: ModelFields = {"position": Learned() if learned else Nope()}
    if not fields.get("legacy", True):  # that head has no table of its own
        values["tie_embeddings"] = True
    return values


def write_input(cfg: ModelConfig) -> Json:
    """Writes what v1 and v2 share."""
    mixer = cfg.mixer
    written: Json = {
        "position_biased_input": isinstance(cfg.position, Learned),
        "relative_attention": mixer is not None,
        "legacy": True,
        "pooler_hidden_size": cfg.d_model,
    }
    if isinstance(mixer, DisentangledConfig):
        written["pos_att_type"] = list(mixer.terms)
        written["max_relative_positions"] = mixer.max_distance or -1
    return written


def read(fields: Fields) -> ModelFields:
    fields.require("talking_head", False)
    terms = read_terms(fields)
    farthest = max(0, fields.get("max_relative_positions", -1))
    mixer = DisentangledConfig(terms=terms, max_distance=farthest) if terms else None
    return read_input(fields) | {"mixer": mixer}


PUBLISHED = Published(
    model_type="deberta",
    prefix="deberta.",
    names=lambda cfg: BODY,
    heads=build_heads("Deberta", **HEADS),
    defaults=dict(hidden_size=768),  # that of the pooler, which is compared with it
    fields=bert_like.FIELDS,
    fixed=FIXED,
    harmless=HARMLESS,
    read=read,
    write=write_input,
    duplicates={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored=(r"embeddings\.position_(ids|embeddings\.weight)",),
    spellings=SPELLINGS,
)
