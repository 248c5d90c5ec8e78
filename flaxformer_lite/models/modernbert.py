"""ModernBERT: layers of global attention alternate with layers of local attention.

Every third layer is global, the others see 64 tokens to each side; the two kinds have different
rotary bases.

Reference: Warner et al., "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder" (2024),
section 2.1.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from flaxformer_lite.config import Execution, LayerKind, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.fields import (
    Fields,
    ModelFields,
    layer_types,
    read_windows,
    repeat_pattern,
)
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope_of, slide_layers, write_ropes
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import Published, add_prefix, build_heads, weight_rows
from flaxformer_lite.nn.functions.pooling import pool
from flaxformer_lite.nn.modules.heads import Transform, VocabHead
from flaxformer_lite.nn.positions.rope import Rope

WINDOW_TOKENS = 128  # tokens of a window, half of them on each side
GLOBAL_EVERY = 3  # the first of so many layers sees everything
BASE = dict(
    vocab_size=50368,
    max_length=8192,
    position=Rope(base=160_000.0),
    norm="layer_no_bias",
    norm_eps=1e-5,
    norm_at=("embed", "in", "final"),
    mlp="gated",
    bias_at=("logits",),
    head="masked_lm",
)
PRESETS = {
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=192, encoder_layers=4),
    "base": dict(d_model=768, num_heads=12, mlp_dim=1152, encoder_layers=22),
    "large": dict(d_model=1024, num_heads=16, mlp_dim=2624, encoder_layers=28),
}


def transform(cfg: ModelConfig, execution: Execution) -> Transform:
    """Builds the layer before the last one of every head."""
    bias = "head" in cfg.bias_at
    return Transform("gelu", cfg.norm_config, bias, cfg.initial, execution)


class Model(EncoderModel):
    """ModernBERT.

    As `classifier_pooling` says, classifiers read the mean of all tokens, or else the classifier of
    sequences the first column, and multiple choice the first token.
    """

    heads = ("none", "masked_lm", *bert_like.CLASSIFIERS)
    vocab_heads = ("masked_lm",)
    pooled = ()
    head_modules = ("transform",)
    classifier_poolings = ("first", "mean")

    def setup_head(self):
        cfg = self.cfg
        run = self.execution
        self.transform = transform(cfg, run)
        self.lm_head = VocabHead(build_layers.vocab(cfg), run)
        self.classifier = build_layers.classifier(cfg, run)

    def project(self, x_BTD):
        return self.lm_head(self.transform(x_BTD), self.token_embed.embedding)

    def summarise(self, x_BTD, attention_mask_BT):
        pooling = self.cfg.classifier_pooling
        if pooling == "first" and self.cfg.head == "sequence_classification":
            return x_BTD[:, 0]
        if attention_mask_BT is None:
            attention_mask_BT = jnp.ones(x_BTD.shape[:2], jnp.int32)
        return pool(pooling, x_BTD, attention_mask_BT, unit=False).astype(x_BTD.dtype)

    def classify(self, x):
        return self.classifier(self.transform(x))


def pattern(windows: list[int], local: Rope) -> tuple[LayerKind, ...]:
    """Builds one kind per layer; the first has no norm before attention, as the embeddings end in
    one."""
    first, *others = slide_layers(windows, local)
    return (dataclasses.replace(first, norm_at=("mlp_in",)), *others)


def alternating(layers: int, window: int) -> tuple[LayerKind, ...]:
    """Builds the published kinds of layer: every third is global."""
    windows = [window if layer % GLOBAL_EVERY else 0 for layer in range(layers)]
    return pattern(windows, Rope())


def config(preset: str = "base", **overrides) -> ModelConfig:
    """Builds a config with the published sizes (table 4).

    Keyword arguments override it, and the number of layers gives their kinds.
    """
    layers = overrides.get("encoder_layers", PRESETS.get(preset, {}).get("encoder_layers", 0))
    kinds = {"pattern": alternating(layers, WINDOW_TOKENS // 2 + 1)}
    return build_config("modernbert", BASE, PRESETS, preset, **kinds | overrides)


NORMS_AND_MLP = weight_rows(
    ("attn_norm", "attention_in_norm"),
    ("mlp_norm", "mlp_in_norm"),
    ("mlp.Wi", ("mlp/gate", "mlp/up"), "2OI"),
    ("mlp.Wo", "mlp/down"),
)
LAYER = NORMS_AND_MLP + weight_rows(
    ("attn.Wqkv", ("attention/query", "attention/key", "attention/value"), "3OI"),
    ("attn.Wo", "attention/out"),
)
EMBEDDINGS = weight_rows(
    ("embeddings.tok_embeddings", "token_embed"),
    ("embeddings.norm", "embed/norm"),
)
BODY = (
    *EMBEDDINGS,
    *weight_rows(("final_norm", "encoder/final_norm")),
    *add_prefix("layers.{i}", "encoder/layer_{i}", LAYER),
)
TRANSFORM_PARTS = weight_rows(("dense", "dense"), ("norm", "norm"))
TRANSFORM = add_prefix("head", "transform", TRANSFORM_PARTS)
VOCABULARY = weight_rows(("decoder.weight", "lm_head/kernel"), ("decoder.bias", "lm_head/bias"))
CLASSIFIER = TRANSFORM + bert_like.CLASSIFIER
FIELDS = dict(
    hidden_size="d_model",
    num_attention_heads="num_heads",
    intermediate_size="mlp_dim",
    max_position_embeddings="max_length",
    hidden_activation="activation",
    norm_eps="norm_eps",
)
BIASES = {
    "attention_bias": ("query", "key", "value", "out"),
    "mlp_bias": ("mlp",),
    "classifier_bias": ("head",),
    "decoder_bias": ("logits",),
}
HARMLESS = (
    "cls_token_id",
    "deterministic_flash_attn",
    "embedding_dropout",
    "initializer_cutoff_factor",
    "layer_norm_eps",
    "mlp_dropout",
    "position_embedding_type",
    "reference_compile",
    "repad_logits_with_grad",
    "sparse_pred_ignore_index",
    "sparse_prediction",
)


def read_layers(fields: Fields, beyond: int) -> ModelFields:
    """Reads windows, bases and biases.

    Transformers 5 spells them by type of layer, older files by how often a layer is global.

    Args:
      fields: the fields of config.json.
      beyond: what a window has more than half of `local_attention`.
    """
    layers = fields.get("num_hidden_layers", 22)
    every = fields.size("global_attn_every_n_layers", GLOBAL_EVERY)
    window = fields.size("local_attention", WINDOW_TOKENS) // 2 + beyond
    windows = read_windows(fields, layers, lambda layer: layer % every > 0, window)
    bias_at: list[str] = []
    for name, slots in BIASES.items():
        if fields.get(name, name == "decoder_bias"):
            bias_at += slots
    base = fields.get("global_rope_theta", 160_000.0)
    local_base = fields.get("local_rope_theta", 10_000.0)
    local = read_rope_of(fields, "sliding_attention", local_base)
    return {
        "position": read_rope_of(fields, "full_attention", base),
        "pattern": pattern(repeat_pattern(windows, layers), local),
        "norm": "layer" if fields.get("norm_bias", False) else "layer_no_bias",
        "bias_at": tuple(bias_at),
    }


def write_layers(cfg: ModelConfig, beyond: int) -> Json:
    """Writes both spellings, if the older one can express the config."""
    types = layer_types(cfg)
    window = WINDOW_TOKENS // 2 + beyond
    local: Any = Rope()
    for kind in cfg.kinds:
        if kind.window:
            window = kind.window
            local = kind.position or cfg.position
    ropes = {"full_attention": cfg.position, "sliding_attention": local}
    written = write_ropes(ropes) | {
        "layer_types": types,
        "global_rope_theta": ropes["full_attention"].base,
        "local_rope_theta": ropes["sliding_attention"].base,
        "local_attention": 2 * (window - beyond),
        "norm_bias": cfg.norm == "layer",
        "pad_token_id": cfg.pad_token_id,  # null too, where transformers has a default
    }
    for name, slots in BIASES.items():
        written[name] = slots[0] in cfg.bias_at
    every = _global_every(types)
    if every:
        written["global_attn_every_n_layers"] = every
    return written


def _global_every(types: list[str]) -> int:
    """Returns n if every n-th layer is global, from the first on, and 0 for another order."""
    for n in range(1, len(types) + 1):
        expected = ["sliding_attention" if i % n else "full_attention" for i in range(len(types))]
        if types == expected:
            return n
    return 0


POOLINGS = {"cls": "first", "mean": "mean"}


def read(fields: Fields) -> ModelFields:
    pooling = fields.get("classifier_pooling", "cls")
    fields.require("classifier_pooling", pooling if pooling in POOLINGS else "cls")
    # 1 for the token itself, which a window counts here and half of `local_attention` does not.
    return read_layers(fields, 1) | {"classifier_pooling": POOLINGS[pooling]}


def write(cfg: ModelConfig) -> Json:
    names = {ours: name for name, ours in POOLINGS.items()}
    return write_layers(cfg, 1) | {"classifier_pooling": names[cfg.classifier_pooling]}


PUBLISHED = Published(
    model_type="modernbert",
    prefix="model.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "ModernBert",
        none=(),
        masked_lm=TRANSFORM + VOCABULARY,
        **dict.fromkeys(bert_like.CLASSIFIERS, CLASSIFIER),
    ),
    fields=FIELDS | {"num_hidden_layers": "encoder_layers"},
    fixed={"classifier_activation": "gelu"},
    harmless=HARMLESS,
    read=read,
    write=write,
)
