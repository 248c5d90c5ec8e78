"""EuroBERT: Llama's layers without a causal mask, as an encoder.

Reference: Boizard et al., "EuroBERT: Scaling Multilingual Encoders for European Languages" (2025),
section 2.
"""

from functools import partial

import jax.numpy as jnp

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import bert_like, llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.weight_map import add_prefix, build_heads, weight_rows
from flaxformer_lite.nn.functions.pooling import pool
from flaxformer_lite.nn.modules.heads import Classifier, Transform, VocabHead
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=128256,
    max_length=8192,
    position=Rope(base=250_000.0),
    classifier_pooling="late",
    head="masked_lm",
)
PRESETS = {  # table 1
    "tiny": dict(d_model=128, num_heads=4, mlp_dim=344, encoder_layers=4),
    "210m": dict(d_model=768, num_heads=12, mlp_dim=3072, encoder_layers=12),
    "610m": dict(d_model=1152, num_heads=18, num_kv_heads=6, mlp_dim=4096, encoder_layers=26),
    "2.1b": dict(d_model=2304, num_heads=18, num_kv_heads=6, mlp_dim=6144, encoder_layers=32),
}
config = partial(build_config, "eurobert", BASE, PRESETS, "210m")


class Model(EncoderModel):
    """EuroBERT.

    With `classifier_pooling="late"` each token passes the dense layer of the classifier before the
    mean is taken, with the other poolings the pooled vector does.
    """

    heads = ("none", "masked_lm", "sequence_classification", "token_classification")
    vocab_heads = ("masked_lm",)
    pooled = ()
    bare_heads = ("masked_lm",)
    head_modules = ("transform",)
    classifier_poolings = ("first", "mean", "late")

    def setup_head(self):
        cfg = self.cfg
        run = self.execution
        self.transform = Transform("gelu", initial=cfg.initial, execution=run)
        self.lm_head = VocabHead(build_layers.vocab(cfg), run)
        self.classifier = Classifier(cfg.num_labels, True, cfg.initial, run)

    def project(self, x_BTD):
        return self.lm_head(x_BTD, self.token_embed.embedding)

    def summarise(self, x_BTD, attention_mask_BT):
        pooling = self.cfg.classifier_pooling
        if pooling == "first":
            return self.transform(x_BTD[:, 0])
        if attention_mask_BT is None:
            attention_mask_BT = jnp.ones(x_BTD.shape[:2], jnp.int32)
        if pooling == "late":
            x_BTD = self.transform(x_BTD)
        pooled_BD = pool("mean", x_BTD, attention_mask_BT, unit=False).astype(x_BTD.dtype)
        if pooling == "late":
            return pooled_BD
        return self.transform(pooled_BD)


BODY = weight_rows(
    ("embed_tokens", "token_embed"),
    ("norm", "encoder/final_norm"),
) + add_prefix("layers.{i}", "encoder/layer_{i}", llama_like.LAYER)
VOCABULARY = weight_rows(("lm_head.weight", "lm_head/kernel"), ("lm_head.bias", "lm_head/bias"))
POOLINGS = {"bos": "first", "mean": "mean", "late": "late"}


def read(fields: Fields) -> ModelFields:
    pooling = fields.get("classifier_pooling", "late")
    fields.require("classifier_pooling", pooling if pooling in POOLINGS else "late")
    read = llama_like.read(fields)
    if fields.get("mlp_bias", False):
        read["bias_at"] += ("logits",)
    return read | {
        "classifier_pooling": POOLINGS[pooling],
    }


def write(cfg: ModelConfig) -> Json:
    names = {ours: name for name, ours in POOLINGS.items()}
    return llama_like.write(cfg) | {"classifier_pooling": names[cfg.classifier_pooling]}


PUBLISHED = llama_like.published(
    "eurobert",
    BODY,
    defaults=dict(rms_norm_eps=1e-5),
    heads=build_heads(
        "EuroBert",
        none=(),
        masked_lm=VOCABULARY,
        sequence_classification=weight_rows(("dense", "transform/dense")) + bert_like.CLASSIFIER,
        token_classification=bert_like.CLASSIFIER,
    ),
    fields=llama_like.FIELDS | {"num_hidden_layers": "encoder_layers"},
    harmless=("mask_token_id",),
    read=read,
    write=write,
)
