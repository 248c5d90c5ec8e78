"""The record of experts that families share, and the losses of their routers in files."""

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig


def find_experts(cfg: ModelConfig) -> MoeConfig:
    """Returns the record of the experts of a model's layers."""
    experts = [part for part in cfg.feed_forwards if isinstance(part, MoeConfig)]
    if experts:
        return experts[0]
    raise ConfigError(
        f"feed_forward={cfg.feed_forward}: published files of family={cfg.family!r} have experts;"
        " set model.feed_forward.name=moe."
    )


def read_router_losses(
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


def write_router_losses(moe: MoeConfig, over: str = "stack") -> Json:
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
