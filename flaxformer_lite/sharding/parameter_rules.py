"""Partition rules: (pattern of a parameter's path, mesh axes of its last dimensions), for the parts that a config has.

sharding/parameters.py applies them strictly: the first match wins, and a leading scan axis stays whole. Weights are split over
`fsdp` on the model width and over `tensor` on heads, feed-forward width or vocabulary; what is small is replicated.
"""

from flaxformer_lite import registry
from flaxformer_lite.config import ModelConfig

Rules = tuple[tuple[str, tuple], ...]

# The vocabulary takes both axes: a table split on its width makes the partitioner rematerialise every lookup.
VOCAB = ("tensor", "fsdp")
TOKENS: Rules = ((r"token_embed/embedding$", (VOCAB, None)),)
TOKEN_TYPES: Rules = ((r"embed/token_types$", ()),)
FACTORISED: Rules = ((r"(embed/project|project_in|project_out)/(kernel|bias)$", ()),)
POSITIONS: Rules = ((r"position/\w+$", ()),)
ATTENTION: Rules = (
    (r"(query|key|value)/kernel$", ("fsdp", "tensor", None)),
    (r"attention/out/kernel$", ("tensor", None, "fsdp")),
)
IN_BIAS: Rules = ((r"(query|key|value)/bias$", ("tensor", None)),)
OUT_BIAS: Rules = ((r"attention/out/bias$", ()),)
MLP: Rules = ((r"mlp/(up|gate)/kernel$", ("fsdp", "tensor")), (r"mlp/down/kernel$", ("tensor", "fsdp")))
MLP_BIAS: Rules = ((r"mlp/(up|gate)/bias$", ("tensor",)), (r"mlp/down/bias$", ()))
NORMS: Rules = ((r"norm/(scale|bias)$", ()),)
UNTIED: Rules = ((r"(lm_head|vocab)/kernel$", (VOCAB, None)),)
LOGITS_BIAS: Rules = ((r"(lm_head|vocab)/bias$", (VOCAB,)),)
HEADS: Rules = ((r"(masked_lm|pooler|classifier|next_sentence|discriminator)/\w+/(kernel|bias)$", ()),)


def rules(cfg: ModelConfig) -> Rules:
    """The rules that a model of this config needs, and no others, so that one which matches nothing is a mistake."""
    tables = cfg.position.tables(
        d_model=cfg.d_model, num_heads=cfg.num_heads, head_dim=cfg.head_width, max_length=cfg.max_length
    )
    model = registry.resolve("models", cfg.family).Model
    vocab_head = cfg.head in model.vocab_heads
    other_head = cfg.head in model.pooled if cfg.head == "none" else cfg.head not in ("lm", "encoder")
    parts = (
        (TOKENS, True),
        (TOKEN_TYPES, cfg.type_vocab_size),
        (FACTORISED, cfg.embed_width != cfg.d_model),
        (POSITIONS, tables),
        (ATTENTION, True),
        (IN_BIAS, {"query", "key", "value"} & set(cfg.bias_at)),
        (OUT_BIAS, "out" in cfg.bias_at),
        (MLP, True),
        (MLP_BIAS, "mlp" in cfg.bias_at),
        (NORMS, cfg.norm_at or cfg.qk_norm != "none"),
        (UNTIED, vocab_head and not cfg.tie_embeddings),
        (LOGITS_BIAS, vocab_head and "logits" in cfg.bias_at),
        (HEADS, other_head),
    )
    return tuple(rule for part, present in parts if present for rule in part)
