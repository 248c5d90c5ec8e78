"""Gemma: Llama with scaled embeddings, a tanh GELU gate and tied logits.

Embeddings are scaled by sqrt(D), and norms store scale - 1.

Reference: Gemma Team, "Gemma: Open Models Based on Gemini Research and Technology" (2024), section
2.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import Head

BASE = llama_like.BASE | dict(
    vocab_size=256000,
    max_length=8192,
    norm="rms_offset",
    norm_eps=1e-6,
    activation="gelu_tanh",
    embed_power=0.5,
    tie_embeddings=True,
    head_dim=256,
    pad_token_id=0,
)
PRESETS = {  # table 1; mlp_dim is per branch of the gate
    "tiny": dict(
        d_model=128, num_heads=4, num_kv_heads=1, head_dim=48, mlp_dim=344, decoder_layers=4
    ),
    "2b": dict(d_model=2048, num_heads=8, num_kv_heads=1, mlp_dim=16384, decoder_layers=18),
    "7b": dict(d_model=3072, num_heads=16, mlp_dim=24576, decoder_layers=28),
}
config = partial(build_config, "gemma", BASE, PRESETS, "7b")


Model = llama_like.LabelingModel


def read(fields: Fields) -> ModelFields:
    """Reads the activation.

    `gelu` has always meant the tanh form in Gemma, and `hidden_activation` is ignored.
    """
    act = {}
    if fields.get("hidden_act") in (None, "gelu"):
        act["activation"] = "gelu_tanh"
    fields.get("hidden_activation")
    heads = llama_like.read_heads(fields, kv_heads=16, head_dim=256)
    return heads | read_prompt(fields) | act


def read_prompt(fields: Fields) -> ModelFields:
    """Reads whether generation reads prompts both ways, as the text half of PaliGemma does.

    Other heads would read the whole text both ways.
    """
    if fields.head != "lm":
        fields.require(BOTH_WAYS, False)
    return {"bidirectional_prompt": fields.get(BOTH_WAYS, False)}


def write_prompt(cfg: ModelConfig) -> Json:
    if not cfg.bidirectional_prompt:
        return {}
    return {BOTH_WAYS: True}


def write_activation(cfg: ModelConfig, field: str) -> dict[str, str]:
    """Writes the tanh form under the family's name for it, others under their usual names."""
    if cfg.activation != "gelu_tanh":
        return {}
    return {field: "gelu_pytorch_tanh"}


def write_scale(cfg: ModelConfig) -> Json:
    """Writes the scale of attention; a root's power is rounded, so 256 may come back beside it."""
    scalar = cfg.scale**-2
    if round(scalar) ** -0.5 == cfg.scale:
        scalar = round(scalar)
    return {"query_pre_attn_scalar": scalar}


def heads(name: str) -> dict[str, Head]:
    """Returns Llama's heads except question answering, which Gemma lacks."""
    return llama_like.heads(name, only=Model.heads)


BOTH_WAYS = "use_bidirectional_attention"
FIXED = {"attention_bias": False}


def write(cfg: ModelConfig) -> Json:
    return llama_like.write_heads(cfg) | write_activation(cfg, "hidden_act") | write_prompt(cfg)


PUBLISHED = llama_like.published(
    "gemma",
    heads=heads("Gemma"),
    fixed=FIXED,
    read=read,
    write=write,
)
