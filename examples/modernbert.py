"""ModernBERT, written outside the package: global attention layers alternate with local ones.

    model, params = load_pretrained("path/to/ModernBERT-base", family="examples.modernbert:Model")
    flaxformer_lite fill-mask --family examples.modernbert:Model --model path/to/ModernBERT-base "A
    [MASK] sleeps."

Every third layer is global, the others see 64 tokens to each side; the two kinds have different
rotary bases.

Reference: Warner et al., "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder" (2024),
  section 2.1.
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, LayerKind, ModelConfig, check_family
from flaxformer_lite.models import bert
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.rope_fields import read_rope, write_rope
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import (
    Fields,
    Head,
    Published,
    layer_types,
    read_windows,
    rows,
    within,
)
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.heads import Classifier, VocabHead
from flaxformer_lite.nn.modules.norms import Norm
from flaxformer_lite.nn.positions.rope import Rope

LOCAL = 128
GLOBAL_EVERY = 3
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


class Transform(nn.Module):
    """The dense layer, activation and norm before every head's last layer."""

    cfg: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.cfg
        sizes = {"D": x.shape[-1], "A": x.shape[-1]}
        equation = "BTD,DA->BTA" if x.ndim == 3 else "BD,DA->BA"
        dense = Einsum(equation, sizes, False, cfg.initial, cfg.execution, name="dense")
        return Norm(cfg.norm_config, cfg.execution, name="norm")(ACTIVATIONS["gelu"](dense(x)))


class Model(EncoderModel):
    """ModernBERT with a classifier on the first token; `MeanPooled` takes the mean of all
    tokens."""

    heads = ("none", "masked_lm", "sequence_classification", "token_classification")
    vocab_heads = ("masked_lm",)
    pooled = ()
    head_modules = ("transform",)
    pooling: ClassVar[str] = "cls"

    def setup_head(self):
        cfg = self.cfg
        run = self.cfg.execution
        self.transform = Transform(cfg)
        self.lm_head = VocabHead(build_layers.vocab(cfg), run)
        self.classifier = Classifier(cfg.num_labels, True, cfg.initial, run)

    def project(self, x_BTD):
        return self.lm_head(self.transform(x_BTD), self.token_embed.embedding)

    def summarise(self, x_BTD, attention_mask_BT):
        return x_BTD[:, 0]

    def classify(self, x):
        return self.classifier(self.transform(x))


class MeanPooled(Model):
    pooling = "mean"

    def summarise(self, x_BTD, attention_mask_BT):
        if attention_mask_BT is None:
            return x_BTD.mean(axis=1)
        keep_BT1 = (jnp.asarray(attention_mask_BT) != 0).astype(x_BTD.dtype)[..., None]
        return (x_BTD * keep_BT1).sum(axis=1) / keep_BT1.sum(axis=1)


def pattern(windows: list[int], local: Rope) -> tuple[LayerKind, ...]:
    """Builds one kind per layer; the first has no norm before attention, as the embeddings end in
    one."""
    first = ("mlp_in",)
    return tuple(
        LayerKind(
            window=window, position=local if window else None, norm_at=None if layer else first
        )
        for layer, window in enumerate(windows)
    )


def config(preset: str = "base", **overrides) -> ModelConfig:
    """Builds a config with the published sizes (table 4); keyword arguments override it, and fix
    the kinds of layers."""
    layers = overrides.get("encoder_layers", PRESETS.get(preset, {}).get("encoder_layers", 0))
    windows = [LOCAL // 2 + 1 if layer % GLOBAL_EVERY else 0 for layer in range(layers)]
    kinds = {"pattern": pattern(windows, Rope())}
    return build(f"{__name__}:Model", BASE, PRESETS, preset, **kinds | overrides)


LAYER = rows(
    ("attn_norm", "attention_in_norm"),
    ("attn.Wqkv", ("attention/query", "attention/key", "attention/value"), "3OI"),
    ("attn.Wo", "attention/out"),
    ("mlp_norm", "mlp_in_norm"),
    ("mlp.Wi", ("mlp/gate", "mlp/up"), "2OI"),
    ("mlp.Wo", "mlp/down"),
)
BODY = (
    *rows(
        ("embeddings.tok_embeddings", "token_embed"),
        ("embeddings.norm", "embed/norm"),
        ("final_norm", "encoder/final_norm"),
    ),
    *within("layers.{i}", "encoder/layer_{i}", LAYER),
)
TRANSFORM = rows(("head.dense", "transform/dense"), ("head.norm", "transform/norm"))
DECODER = rows(("decoder.weight", "lm_head/kernel"), ("decoder.bias", "lm_head/bias"))


def read(fields: Fields) -> dict[str, Any]:
    """Reads windows and bases, as transformers 5 spells them (by type of layer) or as the published
    files do."""
    layers = fields.get("num_hidden_layers", 22)
    every = fields.size("global_attn_every_n_layers", GLOBAL_EVERY)
    window = fields.size("local_attention", LOCAL) // 2 + 1
    windows = read_windows(fields, layers, lambda layer: layer % every > 0, window)
    slots = {"attention_bias": ("query", "key", "value", "out"), "mlp_bias": ("mlp",)}
    biases = tuple(
        slot for name, named in slots.items() if fields.get(name, False) for slot in named
    )
    if (pooling := fields.get("classifier_pooling", "cls")) not in ("cls", "mean"):
        raise ConfigError(f"config.json: classifier_pooling={pooling!r}: must be cls or mean.")
    return {
        "family": f"{__name__}:{'Model' if pooling == 'cls' else 'MeanPooled'}",
        "position": rope(fields, "full_attention", fields.get("global_rope_theta", 160_000.0)),
        "pattern": pattern(
            [windows[layer % len(windows)] for layer in range(layers)],
            rope(fields, "sliding_attention", fields.get("local_rope_theta", 10_000.0)),
        ),
        "norm": "layer" if fields.get("norm_bias", False) else "layer_no_bias",
        "bias_at": biases + (("logits",) if fields.get("decoder_bias", True) else ()),
    }


def rope(fields: Fields, layer_type: str, base: float) -> Rope:
    """Reads the encoding of one type of layer."""
    nested = fields.get("rope_parameters", {})
    if unknown := sorted(set(nested) - {"full_attention", "sliding_attention"}):
        raise ConfigError(
            f"config.json: rope_parameters.{unknown[0]}: must be those of full_attention or"
            " sliding_attention."
        )
    shared = {name: fields.get(name) for name in ("rope_scaling", "max_position_embeddings")}
    return read_rope(
        Fields(shared | {"rope_parameters": nested.get(layer_type), "rope_theta": base})
    )


def write(cfg: ModelConfig) -> dict[str, Any]:
    """Writes both spellings, if the older one can express the config."""
    types = layer_types(cfg)
    local = next(
        (kind for kind in cfg.kinds if kind.window),
        LayerKind(window=LOCAL // 2 + 1, position=Rope()),
    )
    ropes = {"full_attention": cfg.position, "sliding_attention": local.position or cfg.position}
    parameters = {
        name: {"rope_type": "default"} | _flat(write_rope(own)) for name, own in ropes.items()
    }
    every = [
        n
        for n in range(1, len(types) + 1)
        if all((i % n > 0) == ("sliding" in t) for i, t in enumerate(types))
    ]
    return {
        "layer_types": types,
        "rope_parameters": parameters,
        "global_rope_theta": ropes["full_attention"].base,
        "local_rope_theta": ropes["sliding_attention"].base,
        "local_attention": 2 * (local.window - 1),
        "norm_bias": cfg.norm == "layer",
        "attention_bias": "query" in cfg.bias_at,
        "mlp_bias": "mlp" in cfg.bias_at,
        "decoder_bias": "logits" in cfg.bias_at,
        "classifier_pooling": check_family(cfg).pooling,
        "pad_token_id": cfg.pad_token_id,  # null too, where transformers has a default
    } | ({"global_attn_every_n_layers": every[0]} if every else {})


def _flat(spelled: dict[str, Any]) -> dict[str, Any]:
    return {"rope_theta": spelled["rope_theta"], **spelled.get("rope_scaling", {})}


PUBLISHED = Published(
    model_type="modernbert",
    prefix="model.",
    names=lambda cfg: BODY,
    heads={
        "none": Head("ModernBertModel"),
        "masked_lm": Head("ModernBertForMaskedLM", TRANSFORM + DECODER),
        "sequence_classification": Head(
            "ModernBertForSequenceClassification", TRANSFORM + bert.CLASSIFIER
        ),
        "token_classification": Head(
            "ModernBertForTokenClassification", TRANSFORM + bert.CLASSIFIER
        ),
    },
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "mlp_dim",
        "max_position_embeddings": "max_length",
        "hidden_activation": "activation",
        "norm_eps": "norm_eps",
        "tie_word_embeddings": "tie_embeddings",
    },
    fixed={"classifier_activation": "gelu", "classifier_bias": False},
    harmless=(
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
    ),
    read=read,
    write=write,
)
