"""BART: a post-norm encoder-decoder with learned positions.

It has a norm after the embeddings and a bias on the logits.

Reference: Lewis et al., "BART: Denoising Sequence-to-Sequence Pre-training" (2020), section 2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models.common import bart_like, bert_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Published, WeightRow, add_prefix, weight_rows

BASE = bart_like.BASE
PRESETS = bart_like.PRESETS
Model = bart_like.Model

config = partial(build_config, "bart", bart_like.BASE, bart_like.PRESETS, "large")


def names(cfg: ModelConfig) -> tuple:
    """Returns the weight rows of BART and its relatives."""
    slot = "out" if "out" in cfg.norm_at else "in"
    layer = bart_like.layer(cfg)
    cross = add_prefix("encoder_attn", "cross_attention", bart_like.ATTENTION)
    cross += weight_rows(("encoder_attn_layer_norm", f"cross_attention_{slot}_norm"))
    both_stacks: tuple[WeightRow, ...] = ()
    for side, inside in (("encoder", layer), ("decoder", layer + cross)):
        both_stacks += add_prefix(
            f"{side}.layers.{{i}}", f"{side}/layer_{{i}}", inside
        ) + weight_rows(
            (f"{side}.embed_positions.weight", f"{side}_embed/position/position"),
            (f"{side}.layernorm_embedding", f"{side}_embed/norm"),
            (f"{side}.layer_norm", f"{side}/final_norm"),
        )
    if not cfg.decoder_vocab_size:
        return both_stacks + weight_rows(("shared", "token_embed"))
    return both_stacks + weight_rows(
        ("encoder.embed_tokens", "token_embed"), ("decoder.embed_tokens", "decoder_token_embed")
    )


PUBLISHED = Published(
    model_type="bart",
    prefix="model.",
    names=names,
    heads=bart_like.heads(
        "Bart", sequence_classification=bart_like.CLASSIFIER, question_answering=bert_like.SPANS
    ),
    fields=bart_like.FIELDS | bart_like.ENDS,
    harmless=bart_like.HARMLESS,
    fixed={"is_decoder": False},
    read=bart_like.read,
    write=bart_like.write,
    duplicates=bart_like.DUPLICATES,
    optional=("final_logits_bias",),
    ignored=(r"(encoder|decoder)\.version",),
    relatives={"BartForCausalLM": "bart_decoder"},
)
