"""Partition rules for the parts that a config has.

A rule is (regex of a parameter's path, mesh axes of its last dimensions).

A layer's mixer and feed-forward bring their own rules. sharding/parameters.py applies them
strictly: the first match wins, and a leading scan axis stays whole. Weights are split over `fsdp`
on the model width and over `tensor` on heads, feed-forward width or vocabulary; small parameters
are replicated.
"""

import re
from collections.abc import Iterable

from flaxformer_lite.config import ModelConfig, check_family
from flaxformer_lite.config.parts import PartitionRules

# The vocabulary takes both axes: with a table split on its width, the partitioner rematerializes
# every lookup.
VOCAB = ("tensor", "fsdp")
TOKENS: PartitionRules = ((r"token_embed/embedding$", (VOCAB, None)),)
TOKEN_TYPES: PartitionRules = ((r"embed/(token|task)_types$", ()),)
FACTORISED: PartitionRules = ((r"(embed/project|project_in|project_out)/(kernel|bias)$", ()),)
POSITIONS: PartitionRules = ((r"position(_\d+)?/\w+$", ()),)
NORMS: PartitionRules = ((r"norm/(scale|bias)$", ()),)
UNTIED: PartitionRules = ((r"(lm_head|vocab)/kernel$", (VOCAB, None)),)
LOGITS_BIAS: PartitionRules = ((r"(lm_head|vocab)/bias$", (VOCAB,)),)
HEADS = ("masked_lm", "pooler", "classifier", "next_sentence")  # beside the family's own


def rules(cfg: ModelConfig) -> PartitionRules:
    """Returns the rules that a model of this config needs, and no others.

    A rule that matches nothing is therefore a mistake.
    """
    model = check_family(cfg)
    vocab_head = cfg.head in model.vocab_heads
    other_head = cfg.head not in ("lm", "encoder")
    if cfg.head == "none":
        other_head = cfg.head in model.pooled
    if cfg.head in getattr(model, "bare_heads", ()):
        other_head = False
    if cfg.head == "lm" and model.head_modules:  # between the last layer and the vocabulary
        other_head = True
    always_projects = getattr(model, "projects_embeddings", False)
    has_masked_head = vocab_head and cfg.skeleton == "encoder"
    head_modules = "|".join(HEADS + model.head_modules)
    heads: PartitionRules = ((rf"({head_modules})(/\w+)?/(kernel|bias)$", ()),)
    needed: PartitionRules = ()
    if cfg.adapter is not None:
        needed += cfg.adapter.partition_rules()
    needed += TOKENS
    if cfg.type_vocab_size:
        needed += TOKEN_TYPES
    if cfg.embedding_width != cfg.d_model or always_projects:
        needed += FACTORISED
    if _has_tables(cfg):
        needed += POSITIONS
    needed += model.layer_rules(cfg)
    if _has_norms(cfg) or has_masked_head:
        needed += NORMS
    if vocab_head and not cfg.tie_embeddings:
        needed += UNTIED
    if vocab_head and "logits" in cfg.bias_at:
        needed += LOGITS_BIAS
    if other_head:
        needed += heads
    return needed


def below(name: str, rules: PartitionRules, paths: Iterable[str]) -> PartitionRules:
    """Returns the rules that match one of the paths, for the parameters in a tree of this name."""
    paths = tuple(paths)
    below_name = []
    for pattern, axes in rules:
        if any(re.search(pattern, path) for path in paths):
            below_name.append((rf"^{name}/.*(?:{pattern})", axes))
    return tuple(below_name)


def _has_norms(cfg: ModelConfig) -> bool:
    """Returns whether any norm has weights."""
    kinds = {cfg.qk_norm, *(kind.qk_norm for kind in cfg.kinds)}
    slots = [cfg.norm_at, *(kind.norm_at for kind in cfg.kinds if kind.norm_at is not None)]
    if any(slots):
        kinds.add(cfg.norm)
    return bool(kinds - {None, "none", "layer_no_affine", "rms_no_affine"})


def _has_tables(cfg: ModelConfig) -> bool:
    sizes = dict(
        d_model=cfg.d_model,
        num_heads=cfg.num_heads,
        head_dim=cfg.head_width,
        max_length=cfg.max_length,
    )
    encodings = [cfg.position, *(kind.position for kind in cfg.kinds if kind.position is not None)]
    return any(encoding.tables(**sizes) for encoding in encodings)
