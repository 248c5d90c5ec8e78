"""ESM-2 and ESM-1b: pre-norm encoders of proteins, one token for each amino acid.

Where a config sets `token_dropout`, the vectors of mask tokens are zero, and the others are scaled
by the share of tokens that training left unmasked, 0.88, over the text's own share.

Reference: Lin et al., "Evolutionary-scale prediction of atomic-level protein structure with a
language model" (2023), supplement A.1; Rives et al., "Biological structure and function emerge
from scaling unsupervised learning to 250 million protein sequences" (2021); contacts: Rao et al.,
"Transformer protein language models are unsupervised structure learners" (2021), section 3.
"""

import dataclasses
import re
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import bert_like, roberta_like
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.call_with_intermediates import call_inside
from flaxformer_lite.models.weight_map import Published, add_prefix, build_heads, weight_rows
from flaxformer_lite.nn.modules.heads import Classifier
from flaxformer_lite.nn.positions.learned import Learned
from flaxformer_lite.nn.positions.rope import Rope

BASE = bert_like.BASE | dict(
    vocab_size=33,
    max_length=1026,
    type_vocab_size=0,
    position=Rope(),
    norm_eps=1e-5,
    norm_at=("in", "final"),
    pad_token_id=1,
    dropped_token_id=32,
    head="masked_lm",
)
PRESETS = {  # table S1; 20 heads, and 40 from 3B on
    "tiny": dict(d_model=64, num_heads=4, mlp_dim=256, encoder_layers=2),
    "8m": dict(d_model=320, num_heads=20, mlp_dim=1280, encoder_layers=6),
    "35m": dict(d_model=480, num_heads=20, mlp_dim=1920, encoder_layers=12),
    "150m": dict(d_model=640, num_heads=20, mlp_dim=2560, encoder_layers=30),
    "650m": dict(d_model=1280, num_heads=20, mlp_dim=5120, encoder_layers=33),
    "3b": dict(d_model=2560, num_heads=40, mlp_dim=10240, encoder_layers=36),
    "15b": dict(d_model=5120, num_heads=40, mlp_dim=20480, encoder_layers=48),
}
config = partial(build_config, "esm", BASE, PRESETS, "650m")
UNMASKED_IN_TRAINING = 1 - 0.15 * 0.8  # 15% of tokens are predicted, 80% of those masked
END_ID = 2  # the token after a protein, which contacts leave out


class Model(roberta_like.Model):
    """ESM; `contacts` predicts which amino acids touch."""

    heads = ("none", "masked_lm", "sequence_classification", "token_classification")
    pooled = ("none", "sequence_classification")
    head_modules = ("contact_head",)

    def setup_head(self):
        super().setup_head()
        self.contact_head = Classifier(1, True, self.cfg.initial, self.execution)

    def positions(self, input_ids, position_ids, attention_mask, segment_ids):
        """Returns RoBERTa's positions for a learned table, and columns for rotary ones."""
        given = (input_ids, position_ids, attention_mask, segment_ids)
        if isinstance(self.cfg.position, Learned):
            return super().positions(*given)
        return super(roberta_like.Model, self).positions(*given)

    def encode(self, input_ids=None, **inputs) -> jax.Array:
        if self.is_initializing():  # no other call makes its parameters
            maps = self.cfg.encoder_layers * self.cfg.num_heads
            self.contact_head(jnp.zeros((1, maps)))
        return super().encode(input_ids, **inputs)

    def embed_tokens(self, input_ids, attention_mask, segment_ids) -> jax.Array:
        x_BTD = self.token_embed(input_ids)
        mask_token = self.cfg.dropped_token_id
        if mask_token is None:
            return x_BTD
        masked_BT = input_ids == mask_token
        if segment_ids is not None:
            same_BTS = segment_ids[:, :, None] == segment_ids[:, None, :]
            length_BT = same_BTS.sum(axis=-1)
            unmasked_BT = (same_BTS & ~masked_BT[:, None, :]).sum(axis=-1)
        else:
            kept_BT = jnp.ones_like(masked_BT)
            if attention_mask is not None:
                kept_BT = attention_mask != 0
            length_BT = kept_BT.sum(axis=-1, keepdims=True)
            unmasked_BT = length_BT - masked_BT.sum(axis=-1, keepdims=True)
        share_BT = jnp.maximum(unmasked_BT, 1).astype(jnp.float32) / length_BT.astype(jnp.float32)
        scale_BT = jnp.where(masked_BT, 0.0, UNMASKED_IN_TRAINING / share_BT)
        return (x_BTD.astype(jnp.float32) * scale_BT[:, :, None]).astype(x_BTD.dtype)

    def contacts(self, input_ids, attention_mask=None) -> jax.Array:
        """Computes the probability that two amino acids touch, [B, T - 2, T - 2].

        It is a logistic regression on all attention maps, made symmetric and corrected for the
        average of each token. The tokens before and after each protein are left out.

        Args:
          input_ids: [B, T], with the tokens at both ends.
          attention_mask: [B, T], nonzero for tokens to keep.
        """
        output = call_inside(self, True, False, input_ids, attention_mask=attention_mask)
        assert output.attentions is not None, "asked for"
        maps_BLNTS = jnp.stack(output.attentions, axis=1)
        batch, layers, heads, length, _ = maps_BLNTS.shape
        maps_BATS = maps_BLNTS.reshape(batch, layers * heads, length, length)
        kept_BT = jnp.asarray(input_ids) != END_ID
        if attention_mask is not None:
            kept_BT &= jnp.asarray(attention_mask) != 0
        kept_BATS = kept_BT[:, None, :, None] & kept_BT[:, None, None, :]
        maps_BATS = jnp.where(kept_BATS, maps_BATS, 0.0)
        maps_BATS = maps_BATS[:, :, 1:-1, 1:-1]
        maps_BATS = maps_BATS + jnp.swapaxes(maps_BATS, 2, 3)
        of_rows_BAT1 = maps_BATS.sum(axis=3, keepdims=True)
        of_columns_BA1S = maps_BATS.sum(axis=2, keepdims=True)
        of_all_BA11 = of_rows_BAT1.sum(axis=2, keepdims=True)
        maps_BATS = maps_BATS - of_rows_BAT1 * of_columns_BA1S / of_all_BA11
        inner = length - 2
        pairs_BPA = jnp.moveaxis(maps_BATS, 1, -1).reshape(batch, inner * inner, layers * heads)
        return jax.nn.sigmoid(self.contact_head(pairs_BPA)).reshape(batch, inner, inner)


LAYER = weight_rows(
    *[row for row in bert_like.LAYER if "LayerNorm" not in row.name],
    ("attention.LayerNorm", "attention_in_norm"),
    ("LayerNorm", "mlp_in_norm"),
)
BODY = (
    *weight_rows(
        ("embeddings.word_embeddings", "token_embed"),
        ("embeddings.position_embeddings.weight", "embed/position/position"),
        ("embeddings.layer_norm", "embed/norm"),
        ("encoder.emb_layer_norm_after", "encoder/final_norm"),
        ("pooler.dense", "pooler/dense"),
        ("contact_head.regression", "contact_head/dense"),
    ),
    *add_prefix("encoder.layer.{i}", "encoder/layer_{i}", LAYER),
)
FREQUENCIES = "rotary_embeddings.inv_freq"


def read(fields: Fields) -> ModelFields:
    kind = fields.get("position_embedding_type", "absolute")
    if kind not in ("absolute", "rotary"):
        raise ConfigError(
            f"config.json: position_embedding_type={kind!r}: an ESM has absolute or rotary"
            " positions."
        )
    rounded = fields.get("rope_float16_frequencies", False)
    rope = Rope(base=fields.get("rope_theta", 10000.0), float16_frequencies=rounded)
    dropped = fields.get("mask_token_id", kind=int)
    before = ("embed",) if fields.get("emb_layer_norm_before", False) else ()
    return {
        "position": rope if kind == "rotary" else Learned(),
        "dropped_token_id": dropped if fields.get("token_dropout", False) else None,
        "norm_at": (*before, *BASE["norm_at"]),
    }


def write(cfg: ModelConfig) -> Json:
    """Writes a field of ours, which transformers ignores, for frequencies in half precision."""
    written: Json = {
        "position_embedding_type": "absolute" if isinstance(cfg.position, Learned) else "rotary",
        "emb_layer_norm_before": "embed" in cfg.norm_at,
        "token_dropout": cfg.dropped_token_id is not None,
        "mask_token_id": cfg.dropped_token_id,
    }
    if isinstance(cfg.position, Rope):
        written["rope_theta"] = cfg.position.base
        if cfg.position.float16_frequencies:
            written["rope_float16_frequencies"] = True
    return written


def frequencies(cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Returns the frequencies of rotary positions, which transformers reads from the file."""
    if not isinstance(cfg.position, Rope):
        return {}
    return {FREQUENCIES: np.asarray(cfg.position.frequencies(cfg.head_width))}


def settle(cfg: ModelConfig, tensors: Mapping[str, np.ndarray]) -> ModelConfig:
    """Rounds the frequencies to half precision where the file does, as in all of Meta's ESM-2."""
    position = cfg.position
    stored = [array for name, array in tensors.items() if name.endswith(FREQUENCIES)]
    if not stored or not isinstance(position, Rope):
        return cfg
    values = np.stack([np.asarray(array, np.float64) for array in stored])
    is_half = stored[0].dtype == np.float16
    tolerance = 1e-6 if stored[0].dtype == np.float32 else 1e-2
    for rounded in (is_half, not is_half):
        candidate = dataclasses.replace(position, float16_frequencies=rounded)
        expected = np.asarray(candidate.frequencies(cfg.head_width))
        if expected.shape == values.shape[1:] and np.allclose(
            values, expected, rtol=tolerance, atol=0
        ):
            return dataclasses.replace(cfg, position=candidate)
    raise ConfigError(
        f"{FREQUENCIES}: these are not the frequencies of rope_theta={position.base}; correct the"
        " config or the file."
    )


PUBLISHED = Published(
    model_type="esm",
    prefix="esm.",
    names=lambda cfg: BODY,
    heads=build_heads(
        "Esm",
        none=(),
        masked_lm=roberta_like.LM_HEAD,
        sequence_classification=roberta_like.FIRST_TOKEN,
        token_classification=bert_like.CLASSIFIER,
    ),
    defaults=dict(
        layer_norm_eps=1e-12,
        rope_theta=10000.0,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
    ),
    fields=omit_fields(bert_like.FIELDS, "hidden_act", "type_vocab_size"),
    fixed={"is_decoder": False, "add_cross_attention": False, "is_folding_model": False},
    read=read,
    write=write,
    harmless=("hidden_act",),  # always gelu
    settle=settle,
    derived=frequencies,
    # files with rotary positions hold a table that nothing reads, too
    ignored=(
        *bert_like.BUFFERS,
        rf"(.*\.)?{re.escape(FREQUENCIES)}",
        r"embeddings\.position_embeddings\.weight",
    ),
)
