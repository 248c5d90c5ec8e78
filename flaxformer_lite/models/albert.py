"""ALBERT: BERT with shared layer weights, narrow embeddings, and sentence-order prediction.

Reference: Lan et al., "ALBERT: A Lite BERT for Self-supervised Learning of Language
Representations" (2020), section 3.
"""

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import (
    Published,
    add_prefix,
    attention_rows,
    build_heads,
    weight_rows,
)

__all__ = ["PRESETS", "PUBLISHED", "Model", "config"]

BASE = bert_like.BASE | dict(
    vocab_size=30000,
    embedding_size=128,
    bias_at=("embed", *bert_like.BASE["bias_at"]),
    activation="gelu_tanh",
    dropout=0.0,
)
MAX_LAYERS = 256  # layers, which the size of the file says nothing about
PRESETS = {
    "tiny": dict(d_model=128, num_heads=2, mlp_dim=512, encoder_layers=4, embedding_size=64),
    "base": dict(d_model=768, num_heads=12, mlp_dim=3072, encoder_layers=12),
    "large": dict(d_model=1024, num_heads=16, mlp_dim=4096, encoder_layers=24),
    "xlarge": dict(d_model=2048, num_heads=16, mlp_dim=8192, encoder_layers=24),
    "xxlarge": dict(d_model=4096, num_heads=64, mlp_dim=16384, encoder_layers=12),
}


class Model(EncoderModel):
    heads = ("none", "masked_lm", "pretraining", *bert_like.CLASSIFIERS)
    pair_logits = "sop_logits"
    projects_embeddings = True


def config(preset: str = "base", **overrides) -> ModelConfig:
    """Builds a config with ALBERT's sizes (table 1; version 2 drops dropout).

    Keyword arguments override its fields.
    """
    layers = (PRESETS.get(preset, {}) | overrides).get("encoder_layers", 0)
    return build_config(
        "albert", BASE, PRESETS, preset, **{"share_layers": (0,) * layers, **overrides}
    )


def read(fields: Fields) -> ModelFields:
    """Reads the groups of shared layers.

    Steps are divided among groups, and each step runs all layers of its group in turn. With as many
    groups as steps and one layer per group, nothing is shared.
    """
    depth = fields.size("num_hidden_layers", 12)
    groups = fields.size("num_hidden_groups", 1)
    inner = fields.size("inner_group_num", 1)
    if groups == depth > 1:
        if inner > 1:
            raise ConfigError(
                f"config.json: inner_group_num={inner}: with as many groups as layers, only 1 is"
                " supported here."
            )
        return {"encoder_layers": depth, "share_layers": ()}
    if depth * inner > MAX_LAYERS:
        raise ConfigError(
            f"config.json: num_hidden_layers={depth}, inner_group_num={inner}: no model is so deep."
        )
    order: list[int] = []
    for step in range(depth):
        # Divided as transformers does, so that groups of unequal size end at the same steps.
        group = int(step / (depth / groups))
        order += range(group * inner, (group + 1) * inner)
    return {"encoder_layers": depth * inner, "share_layers": tuple(order)}


def inner_layers(cfg: ModelConfig) -> int:
    """Returns how many layers one step runs: the first depth that returns to the first layer."""
    order = cfg.share_layers or (0,)
    if 0 not in order[1:]:
        return len(order)
    return order.index(0, 1)


def write(cfg: ModelConfig) -> Json:
    inner = inner_layers(cfg)
    sets = len(set(cfg.share_layers)) or cfg.encoder_layers
    return {
        "num_hidden_layers": cfg.encoder_layers // inner,
        "num_hidden_groups": sets // inner,
        "inner_group_num": inner,
    }


def index(cfg: ModelConfig, layer: int) -> dict[str, int]:
    inner = inner_layers(cfg)
    return {"g": layer // inner, "j": layer % inner}


LAYER = add_prefix(
    "attention", "attention", attention_rows("query", "key", "value", "dense")
) + weight_rows(
    ("attention.LayerNorm", "attention_out_norm"),
    ("ffn", "mlp/up"),
    ("ffn_output", "mlp/down"),
    ("full_layer_layer_norm", "mlp_out_norm"),
)
BODY = (
    *(row for row in bert_like.BODY if row.name.startswith("embeddings.")),
    *weight_rows(
        ("encoder.embedding_hidden_mapping_in", "embed/project"), ("pooler", "pooler/dense")
    ),
    *add_prefix("encoder.albert_layer_groups.{g}.albert_layers.{j}", "encoder/layer_{i}", LAYER),
)
PREDICTIONS = weight_rows(
    ("predictions.dense", "masked_lm/dense"),
    ("predictions.LayerNorm", "masked_lm/norm"),
    ("predictions.decoder.weight", "masked_lm/vocab/kernel"),
    ("predictions.bias", "masked_lm/vocab/bias"),
)
PAIRS = weight_rows(("sop_classifier.classifier", "next_sentence/dense"))
PUBLISHED = Published(
    model_type="albert",
    defaults=dict(hidden_size=4096, num_attention_heads=64, intermediate_size=16384),
    prefix="albert.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "Albert",
        none=(),
        masked_lm=PREDICTIONS,
        pretraining=PREDICTIONS + PAIRS,
        **bert_like.CLASSIFIERS,
    ),
    fields=omit_fields(bert_like.FIELDS, "num_hidden_layers")
    | {"embedding_size": "embedding_size"},
    fixed=bert_like.FIXED,
    read=read,
    write=write,
    duplicates={"predictions.decoder.bias": "predictions.bias"},
    ignored=bert_like.BUFFERS,
    index=index,
)
