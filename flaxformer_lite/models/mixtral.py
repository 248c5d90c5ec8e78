"""Mixtral: Mistral with a mixture of experts in place of every feed-forward.

Reference: Jiang et al., "Mixtral of Experts" (2024), section 2.
"""

from functools import partial

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import llama
from flaxformer_lite.models.presets import build
from flaxformer_lite.models.weight_map import (
    Fields,
    ModelFields,
    Published,
    rows,
    rows_without,
    within,
)
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama.BASE | dict(
    max_length=32768, position=Rope(base=1e6), feed_forward=MoeConfig(balance=0.02)
)
PRESETS = {  # table 1
    "tiny": dict(
        d_model=128,
        num_heads=4,
        num_kv_heads=2,
        mlp_dim=172,
        decoder_layers=4,
        feed_forward=MoeConfig(num_experts=4),
    ),
    "8x7b": dict(d_model=4096, num_heads=32, num_kv_heads=8, mlp_dim=14336, decoder_layers=32),
    "8x22b": dict(
        d_model=6144,
        num_heads=48,
        num_kv_heads=8,
        mlp_dim=16384,
        decoder_layers=56,
        max_length=65536,
    ),
}
config = partial(build, "mixtral", BASE, PRESETS, "8x7b")
Model = llama.Model
EXPERTS = rows(
    ("block_sparse_moe.gate", "mlp/router"),
    ("block_sparse_moe.experts.{e}.w1", "mlp/expert_{e}/gate"),
    ("block_sparse_moe.experts.{e}.w3", "mlp/expert_{e}/up"),
    ("block_sparse_moe.experts.{e}.w2", "mlp/expert_{e}/down"),
)
LAYER = rows_without(llama.LAYER, "mlp.") + EXPERTS
BODY = llama.ENDS + within("layers.{i}", "decoder/layer_{i}", LAYER)


def moe_of(cfg: ModelConfig) -> MoeConfig:
    """Returns the record of the experts of a model's layers."""
    experts = [part for part in cfg.feed_forwards if isinstance(part, MoeConfig)]
    if experts:
        return experts[0]
    raise ConfigError(
        f"feed_forward={cfg.feed_forward}: published files of family={cfg.family!r} have experts;"
        " set model.feed_forward.name=moe."
    )


def read_losses(
    fields: Fields, *, over: str = "stack", balance: float = 0.001, z_loss: float = 0.0
) -> ModelFields:
    """Reads the losses of the router; all are 0 where transformers adds none.

    It adds them to the loss of a language model whose file asks for the router's logits.

    Args:
      fields: a published config.
      over: as `MoeConfig.losses_over`.
      balance: the family's factor.
      z_loss: likewise; 0 where transformers has no such loss.
    """
    balance = fields.get("router_aux_loss_coef", balance)
    if z_loss:
        z_loss = fields.get("router_z_loss_coef", z_loss)
    asked = fields.get("output_router_logits", False)
    if not asked or fields.head != "lm" or not (balance or z_loss):
        return {"balance": 0.0}
    return {"balance": balance, "z_loss": z_loss, "losses_over": over}


def write_losses(moe: MoeConfig, over: str = "stack") -> Json:
    """Writes the losses of the router, where they are transformers'; others are no part of a file.

    Args:
      moe: the record of the experts.
      over: the family's value of `losses_over`.
    """
    asked = moe.losses_over == over and (moe.balance > 0 or moe.z_loss > 0)
    written: Json = {"output_router_logits": asked}
    if asked:
        written["router_aux_loss_coef"] = moe.balance
    if asked and over == "row":
        written["router_z_loss_coef"] = moe.z_loss
    return written


def read(fields: Fields) -> ModelFields:
    fields.require("router_jitter_noise", 0.0)  # of training, on what the experts read, too
    return llama.read_heads(fields, kv_heads=8) | {
        "norm_eps": fields.get("rms_norm_eps", 1e-5),
        "windows": (fields.nullable("sliding_window", 0),),
        "feed_forward": MoeConfig(
            num_experts=fields.size("num_local_experts", 8),
            experts_per_token=fields.size("num_experts_per_tok", 2),
            **read_losses(fields),
        ),
    }


def write(cfg: ModelConfig) -> Json:
    moe = moe_of(cfg)
    return llama.write_heads(cfg) | {
        "sliding_window": cfg.windows[0] or None,
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.experts_per_token,
        **write_losses(moe),
    }


PUBLISHED = Published(
    model_type="mixtral",
    defaults=dict(max_position_embeddings=131072, rope_theta=1e6),
    prefix="model.",
    names=lambda cfg: BODY,
    heads=llama.heads("Mixtral", "model."),
    fields=llama.FIELDS,
    read=read,
    write=write,
    ignored=llama.BUFFERS,
)
